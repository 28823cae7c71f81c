#include "base/thread.h"

#include <pthread.h>

enum { MOST = 64 };

static void *pass(void *gate) {
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

bool ttc__threads_to_be_had(int n) {
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t threads[MOST];
  int made = 0;
  n = n < MOST ? n : MOST;
  pthread_mutex_lock(&gate); /* all at once, not one after another */
  while (made < n && pthread_create(&threads[made], NULL, pass, &gate) == 0) {
    made++;
  }
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < made; i++) {
    pthread_join(threads[i], NULL);
  }
  return made == n;
}
