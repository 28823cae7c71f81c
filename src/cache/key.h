/* What a serialized executable depends on, as one digest. Inside src/cache only. */
#ifndef TTC_CACHE_KEY_H
#define TTC_CACHE_KEY_H

#include "cache/disk.h"
#include "pjrt/pjrt.h"

/* Everything but the program: the plugin's contents (hashed once per version of the file, then remembered in d), PJRT's version,
 * the device's kind, this CPU's features, XLA's variables. blocks */
void ttc__key_base(ttc__disk *d, pjrt_plugin *plugin, pjrt_client *client, unsigned char base[TTC__DIGEST]);
/* The program's key. flags: NULL terminated, or NULL. Pure. */
void ttc__key_program(const unsigned char base[TTC__DIGEST], int device, const char *text, size_t nbyte, const char *const *flags,
                      unsigned char key[TTC__DIGEST]);

#endif
