/*
 * fork.c: knows whether this process is a forked child. The Go runtime has only one thread left
 * there, so some calls return and others hang for ever; all of them are refused instead.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "arena.h"
#include "batch.h"
#include "internal.h"

static atomic_int forked;

int relaxc_forked(void) { return atomic_load_explicit(&forked, memory_order_relaxed); }

static void in_child(void) {
  atomic_store_explicit(&forked, 1, memory_order_relaxed);
  relaxc_arena_after_fork();
  relaxc_batch_after_fork();
}

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, in_child); }
