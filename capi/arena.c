/*
 * arena.c: see arena.h. The lock guards lists and sums only; no system call is made under it.
 */
#include "arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "internal.h"

#define MIN_CLASS 20 /* 1 MiB */
#define MAX_CLASS 46 /* 64 TiB, below the address space */
#define HUGE_PAGE ((uint64_t)2 << 20)

struct relaxc_arena {
  void *base;
  uint64_t size; /* asked for         */
  int class;     /* 1 << class mapped */
  relaxc_arena *next;
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static relaxc_arena *idle[MAX_CLASS + 1];
static relaxc_arena_use use;
static uint64_t pool_cap = (uint64_t)1 << 30;
static uint64_t limit;

static uint64_t class_bytes(int class) { return (uint64_t)1 << class; }

/* The smallest class that holds size bytes, -1 if none does. */
static int class_of(uint64_t size) {
  for (int class = MIN_CLASS; class <= MAX_CLASS; class++)
    if (size <= class_bytes(class)) return class;
  return -1;
}

static void *map(int class) {
  void *base = mmap(NULL, class_bytes(class), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
  if (class_bytes(class) >= HUGE_PAGE) madvise(base, class_bytes(class), MADV_HUGEPAGE);
#endif
  return base;
}

static void unmap_all(relaxc_arena *list) {
  while (list != NULL) {
    relaxc_arena *next = list->next;
    munmap(list->base, class_bytes(list->class));
    free(list);
    list = next;
  }
}

/* Takes an idle arena of a class out of the pool. The lock is held. */
static relaxc_arena *take_idle(int class) {
  relaxc_arena *a = idle[class];
  if (a == NULL) return NULL;
  idle[class] = a->next;
  a->next = NULL;
  use.idle_bytes -= class_bytes(class);
  return a;
}

/* Takes the largest idle arenas out until at most keep idle bytes are left. The lock is held;
 * the caller unmaps the list after giving it back. */
static relaxc_arena *evict(uint64_t keep) {
  relaxc_arena *out = NULL;
  for (int class = MAX_CLASS; class >= MIN_CLASS && use.idle_bytes > keep; class--) {
    while (use.idle_bytes > keep && idle[class] != NULL) {
      relaxc_arena *a = take_idle(class);
      use.mapped_bytes -= class_bytes(class);
      a->next = out;
      out = a;
    }
  }
  return out;
}

void relaxc_arena_configure(uint64_t pool_bytes, uint64_t limit_bytes) {
  pthread_mutex_lock(&mu);
  pool_cap = pool_bytes;
  limit = limit_bytes;
  relaxc_arena *out = evict(pool_cap);
  pthread_mutex_unlock(&mu);
  unmap_all(out);
}

/* Counts a new mapping, evicting idle arenas of other classes for it. Returns 0 and counts
 * nothing if the limit forbids it. The lock is held. */
static int reserve(int class, relaxc_arena **out) {
  uint64_t want = class_bytes(class);
  *out = NULL;
  if (limit != 0) {
    uint64_t busy = use.mapped_bytes - use.idle_bytes;
    if (want > limit || busy > limit - want) return 0;
    *out = evict(limit - want - busy);
  }
  use.mapped_bytes += want;
  return 1;
}

/* Maps a reserved class. If the system refuses, everything idle is given back to it first and
 * it is asked once more. */
static void *map_reserved(int class) {
  void *base = map(class);
  if (base != NULL) return base;
  pthread_mutex_lock(&mu);
  relaxc_arena *out = evict(0);
  pthread_mutex_unlock(&mu);
  unmap_all(out);
  base = map(class);
  if (base != NULL) return base;
  pthread_mutex_lock(&mu);
  use.mapped_bytes -= class_bytes(class);
  pthread_mutex_unlock(&mu);
  return NULL;
}

static relaxc_arena *new_mapping(int class, int *why) {
  relaxc_arena *a = calloc(1, sizeof *a);
  void *base = map_reserved(class);
  if (a == NULL || base == NULL) {
    *why = RELAXC_ARENA_SYSTEM;
    if (base != NULL) {
      munmap(base, class_bytes(class));
      pthread_mutex_lock(&mu);
      use.mapped_bytes -= class_bytes(class);
      pthread_mutex_unlock(&mu);
    }
    free(a);
    return NULL;
  }
  a->base = base;
  a->class = class;
  return a;
}

relaxc_arena *relaxc_arena_new(uint64_t size, int *why) {
  int class = class_of(size);
  if (class < 0) {
    *why = RELAXC_ARENA_SYSTEM;
    return NULL;
  }
  relaxc_arena *out = NULL;
  pthread_mutex_lock(&mu);
  relaxc_arena *a = take_idle(class);
  int allowed = a != NULL || reserve(class, &out);
  pthread_mutex_unlock(&mu);
  unmap_all(out);
  if (!allowed) {
    *why = RELAXC_ARENA_LIMIT;
    return NULL;
  }
  if (a == NULL) a = new_mapping(class, why);
  if (a != NULL) a->size = size;
  return a;
}

void *relaxc_arena_base(const relaxc_arena *arena) { return arena->base; }

uint64_t relaxc_arena_size(const relaxc_arena *arena) { return arena->size; }

void relaxc_arena_free(relaxc_arena *arena) {
  if (arena == NULL) return;
  arena->next = NULL;
  if (relaxc_forked()) {
    unmap_all(arena);
    return;
  }
  uint64_t bytes = class_bytes(arena->class);
  pthread_mutex_lock(&mu);
  int keep = bytes <= pool_cap && use.idle_bytes <= pool_cap - bytes;
  if (keep) {
    arena->next = idle[arena->class];
    idle[arena->class] = arena;
    use.idle_bytes += bytes;
  } else {
    use.mapped_bytes -= bytes;
  }
  pthread_mutex_unlock(&mu);
  if (!keep) unmap_all(arena);
}

relaxc_arena_use relaxc_arena_usage(void) {
  pthread_mutex_lock(&mu);
  relaxc_arena_use now = use;
  pthread_mutex_unlock(&mu);
  return now;
}

/* The lists may have been caught half-changed, so the child forgets them. What they hold is
 * memory shared with the parent that the child never touches. */
void relaxc_arena_after_fork(void) {
  pthread_mutex_init(&mu, NULL);
  for (int class = 0; class <= MAX_CLASS; class++) idle[class] = NULL;
  use.mapped_bytes = 0;
  use.idle_bytes = 0;
}
