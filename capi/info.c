/*
 * info.c: what the library says about itself, and the moment from which it can.
 *
 * dlopen returns while the Go runtime still starts on a thread of its own. What is known only
 * after Go's init functions (the version, the fault handlers) is waited for here, without
 * entering Go.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "internal.h"

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t loaded = PTHREAD_COND_INITIALIZER;
static _Atomic(const char *) info;

void relaxc_loaded_set(const char *json) {
  pthread_mutex_lock(&mu);
  atomic_store(&info, json);
  pthread_cond_broadcast(&loaded);
  pthread_mutex_unlock(&mu);
}

int relaxc_loaded_wait(void) {
  if (atomic_load(&info) != NULL) return 1;
  if (relaxc_forked()) return 0;
  pthread_mutex_lock(&mu);
  while (atomic_load(&info) == NULL) pthread_cond_wait(&loaded, &mu);
  pthread_mutex_unlock(&mu);
  return 1;
}

uint32_t relax_abi_version(void) { return RELAX_ABI_VERSION << 16 | RELAX_ABI_MINOR; }

const char *relax_build_info(void) {
  if (!relaxc_loaded_wait()) return "{\"version\":\"unknown: forked while loading\"}";
  return atomic_load(&info);
}
