/* The tier behind the disk and what was used of the cache (ttc_see.h), as cache.c sees them. Any thread. */
#ifndef TTC_CACHE_TIER_H
#define TTC_CACHE_TIER_H

#include "cache/disk.h"
#include "ttc_see.h"

/* A whole and undamaged file of this key, from the tier; false if it has none. blocks */
bool ttc__tier_read(const unsigned char key[TTC__DIGEST], ttc__blob *out);
void ttc__tier_hit(void); /* and the plugin took it */
/* Tell the tier of this executable. blocks */
void ttc__tier_write(const unsigned char key[TTC__DIGEST], const char *bytes, size_t nbyte);

void ttc__used_note(const unsigned char key[TTC__DIGEST]);
void ttc__used_dir(const char *path); /* the disk's, once it is open */

#endif
