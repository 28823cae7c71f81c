/* Seeing and sharing programs: a tier behind the disk cache, what was used of the cache, dumps, and where a graph's nodes come
 * from. Plain functions of numbers and strings, which Python calls without the adapter. */
#ifndef TTC_SEE_H
#define TTC_SEE_H

#include "ttc.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A tier behind the disk: asked for a program that is on no disk of this machine before it is compiled, told of each one that was.
 * Programs have names of 64 hex digits. Both are called by threads of the core, which hold no lock but the right, among processes
 * of this machine, to compile that program. fetch gives the file's bytes to ttc_tier_give; what is damaged or another program's is
 * not used. store must copy the bytes. NULL, NULL: none any more; returns once nobody is inside one. any thread, blocks */
typedef void (*ttc_tier_fetch)(const char *name, void *sink);
typedef void (*ttc_tier_store)(const char *name, const void *bytes, size_t nbyte);
TTC_API void ttc_tier_set(ttc_tier_fetch fetch, ttc_tier_store store);
TTC_API void ttc_tier_give(void *sink, const void *bytes, size_t nbyte); /* from within fetch, once */
TTC_API uint64_t ttc_tier_hits(void);                                    /* programs that came from there. any thread */

/* The disk cache's directory; "" while there is none: no device is open, or it is switched off. any thread */
TTC_API const char *ttc_cache_dir(void);
/* Names of the programs this process compiled or loaded, oldest first, some perhaps twice: fills names[0..max) from the `from`-th
 * on and returns how many there are in all. A file is <dir>/<first two digits>/<name>. any thread */
TTC_API size_t ttc_cache_used(size_t from, size_t max, char (*names)[65]);

/* From now on each program made is compiled anew, with its text, XLA's own dumps and its sizes put into a folder of its own in
 * `dir`, which exists. NULL: no more. any thread */
TTC_API void ttc_dump_to(const char *dir);

/* While on, this thread's calls are defined and compiled, and waited for, but not run: results are stores of undefined contents,
 * and nothing is written. Returns what it was. */
TTC_API bool ttc_compile_only(bool on);

/* Where the nodes come from that this thread appends to graphs from now on: told in errors, and locations in dumps. NULL: unknown
 */
TTC_API void ttc_graph_source(const char *file, int line);

#ifdef __cplusplus
}
#endif
#endif
