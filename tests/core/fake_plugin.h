/* The fake plugin's controls, found in the loaded library with dlsym. Variables it reads when loaded and when a client is made:
 *   FAKE_PLUGIN_MAJOR, FAKE_PLUGIN_MINOR  the version it claims; below 0.70 its table ends before
 * PJRT_Client_CreateUninitializedBuffer FAKE_PLUGIN_PLATFORM                  "cpu" (default); anything else: contents cannot be
 * read through a pointer FAKE_PLUGIN_STRICT                    if set, refuses the client option cpu_device_count by name The same
 * file is loaded once a process: tests that need another version load a copy under another name. */
#ifndef TTC_TESTS_FAKE_PLUGIN_H
#define TTC_TESTS_FAKE_PLUGIN_H

/* Objects handed out and not yet destroyed: errors, events, clients, executables, buffers, serialized programs. */
long fake_plugin_live(void);
/* Make the nth call (1 is the next) of a PJRT function ("PJRT_Client_Compile", or "any") fail with INTERNAL; NULL: none any more.
 * Functions that free things still free them. */
void fake_plugin_fail(const char *call, long nth);
/* The next n calls of that PJRT function find no memory (RESOURCE_EXHAUSTED); NULL: none. */
void fake_plugin_starve(const char *call, long n);
/* From now on break one promise (see ODD in fake_plugin.c for the list); NULL: none. */
void fake_plugin_misbehave(const char *how);
/* The call that was made to fail since then, or NULL. */
const char *fake_plugin_failed(void);
/* Every call of that PJRT function takes so long from now on; NULL: none. */
void fake_plugin_delay(const char *call, long ms);
/* Calls of a PJRT function ("any": of all) so far; -1 if there is no such call. */
long fake_plugin_count(const char *call);

/* While held, no result is there yet and waiting for one waits; letting go calls back all who asked. */
void fake_plugin_hold(int on);

typedef long fake_plugin_live_fn(void);
typedef void fake_plugin_fail_fn(const char *call, long nth);
typedef void fake_plugin_misbehave_fn(const char *how);
typedef void fake_plugin_starve_fn(const char *call, long n);
typedef const char *fake_plugin_failed_fn(void);
typedef void fake_plugin_delay_fn(const char *call, long ms);
typedef long fake_plugin_count_fn(const char *call);
typedef void fake_plugin_hold_fn(int on);

#endif
