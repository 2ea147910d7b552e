/*
 * arena.c: see arena.h. The lock guards lists and sums only; no system call is made under it.
 */
#include "arena.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define MIN_CLASS 20 /* 1 MiB */
#define MAX_CLASS 46 /* 64 TiB, below the address space */
#define HUGE_PAGE ((uint64_t)2 << 20)

struct relaxc_arena {
  void *base;
  uint64_t size; /* asked for         */
  int class;     /* 1 << class mapped */
  int fd;        /* -1: private       */
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

static void *map_private(int class, int *fd) {
  *fd = -1;
  void *base = mmap(NULL, class_bytes(class), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return NULL;
#ifdef MADV_HUGEPAGE
  if (class_bytes(class) >= HUGE_PAGE) madvise(base, class_bytes(class), MADV_HUGEPAGE);
#endif
  return base;
}

/* The file is as long as the class; what is never written of it takes no memory. Its length is
 * sealed, so that no process can cut off what another one has mapped. */
static void *map_shared(int class, int *fd) {
  *fd = memfd_create("relax-batch", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (*fd < 0) return NULL;
  void *base = MAP_FAILED;
  if (ftruncate(*fd, (off_t)class_bytes(class)) == 0 &&
      fcntl(*fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0)
    base = mmap(NULL, class_bytes(class), PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  if (base != MAP_FAILED) return base;
  int cause = errno;
  close(*fd);
  errno = cause;
  return NULL;
}

typedef void *mapper(int class, int *fd);

static void unmap_all(relaxc_arena *list) {
  while (list != NULL) {
    relaxc_arena *next = list->next;
    munmap(list->base, class_bytes(list->class));
    if (list->fd >= 0) close(list->fd);
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

/* Idle bytes that pool and limit have room for. The lock is held. */
static uint64_t idle_allowed(void) {
  if (limit == 0) return pool_cap;
  uint64_t busy = use.mapped_bytes - use.idle_bytes;
  uint64_t room = busy < limit ? limit - busy : 0;
  return room < pool_cap ? room : pool_cap;
}

void relaxc_arena_configure(uint64_t pool_bytes, uint64_t limit_bytes) {
  pthread_mutex_lock(&mu);
  pool_cap = pool_bytes;
  limit = limit_bytes;
  relaxc_arena *out = evict(idle_allowed());
  pthread_mutex_unlock(&mu);
  unmap_all(out);
}

/* Counts a new mapping, evicting idle arenas of other classes for it. Returns 0, or counts
 * nothing and returns what forbids it. The lock is held. */
static int reserve(int class, relaxc_arena **out) {
  uint64_t want = class_bytes(class);
  *out = NULL;
  if (limit != 0) {
    uint64_t busy = use.mapped_bytes - use.idle_bytes;
    if (want > limit) return RELAXC_ARENA_TOO_LARGE;
    if (busy > limit - want) return RELAXC_ARENA_LIMIT;
    *out = evict(limit - want - busy);
  }
  use.mapped_bytes += want;
  return 0;
}

/* Maps a reserved class. If the system refuses, everything idle is given back to it first and
 * it is asked once more. */
static void *map_reserved(int class, mapper *map, int *fd) {
  void *base = map(class, fd);
  if (base != NULL) return base;
  pthread_mutex_lock(&mu);
  relaxc_arena *out = evict(0);
  pthread_mutex_unlock(&mu);
  unmap_all(out);
  base = map(class, fd);
  if (base != NULL) return base;
  int cause = errno;
  pthread_mutex_lock(&mu);
  use.mapped_bytes -= class_bytes(class);
  pthread_mutex_unlock(&mu);
  errno = cause;
  return NULL;
}

static relaxc_arena *new_mapping(int class, mapper *map, int *why) {
  *why = RELAXC_ARENA_SYSTEM;
  relaxc_arena *a = calloc(1, sizeof *a);
  if (a == NULL) {
    pthread_mutex_lock(&mu);
    use.mapped_bytes -= class_bytes(class);
    pthread_mutex_unlock(&mu);
    errno = ENOMEM;
    return NULL;
  }
  a->base = map_reserved(class, map, &a->fd);
  a->class = class;
  if (a->base != NULL) return a;
  int cause = errno;
  free(a);
  errno = cause;
  return NULL;
}

static relaxc_arena *impossible(int *why) {
  *why = RELAXC_ARENA_SYSTEM;
  errno = ENOMEM;
  return NULL;
}

/* A new mapping of a class within the limit. */
static relaxc_arena *fresh(int class, mapper *map, int *why) {
  relaxc_arena *out = NULL;
  pthread_mutex_lock(&mu);
  int forbidden = reserve(class, &out);
  pthread_mutex_unlock(&mu);
  unmap_all(out);
  if (forbidden) {
    *why = forbidden;
    return NULL;
  }
  return new_mapping(class, map, why);
}

relaxc_arena *relaxc_arena_new(uint64_t size, int *why) {
  int class = class_of(size);
  if (class < 0) return impossible(why);
  pthread_mutex_lock(&mu);
  relaxc_arena *a = take_idle(class);
  pthread_mutex_unlock(&mu);
  if (a == NULL) a = fresh(class, map_private, why);
  if (a != NULL) a->size = size;
  return a;
}

relaxc_arena *relaxc_arena_new_shared(uint64_t size, int *why) {
  int class = class_of(size);
  if (class < 0) return impossible(why);
  relaxc_arena *a = fresh(class, map_shared, why);
  if (a != NULL) a->size = size;
  return a;
}

int relaxc_arena_fd(const relaxc_arena *arena) { return arena->fd; }

int relaxc_arena_export_fd(const relaxc_arena *arena) {
  if (arena->fd < 0) return -1;
  /* EINVAL: Linux before 5.1 knows no such seal, and the receiver has to behave. */
  if (fcntl(arena->fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EINVAL) return -1;
  return fcntl(arena->fd, F_DUPFD_CLOEXEC, 3);
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
  use.mapped_bytes -= bytes;
  uint64_t allowed = idle_allowed();
  int keep = arena->fd < 0 && bytes <= allowed && use.idle_bytes <= allowed - bytes;
  if (keep) {
    arena->next = idle[arena->class];
    idle[arena->class] = arena;
    use.mapped_bytes += bytes;
    use.idle_bytes += bytes;
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
