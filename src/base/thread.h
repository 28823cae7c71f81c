/* Can so many threads be started now? Plugins abort the process where they cannot start one, so it is tried before calls that do.
 * Some 20 us a thread. Any thread. */
#ifndef TTC_BASE_THREAD_H
#define TTC_BASE_THREAD_H

#include <stdbool.h>

bool ttc__threads_to_be_had(int n);

#endif
