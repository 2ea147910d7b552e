/*
 * arena.h: the memory batches lie in. One arena is one private anonymous mapping; freed arenas
 * are kept for reuse, because the page faults of a fresh mapping cost more than filling it. A
 * shared arena is a memfd that other processes can map. It is never used again: nobody can tell
 * when the last process, a forked child perhaps, has ceased to look at it.
 */
#ifndef RELAXC_ARENA_H
#define RELAXC_ARENA_H

#include <stddef.h>
#include <stdint.h>

typedef struct relaxc_arena relaxc_arena;

/* Why relaxc_arena_new returned NULL. */
enum {
  RELAXC_ARENA_LIMIT = 1,    /* the limit of all batch memory is reached */
  RELAXC_ARENA_SYSTEM = 2,   /* the system gave no memory                */
  RELAXC_ARENA_TOO_LARGE = 3 /* the limit is below this one alone        */
};

typedef struct relaxc_arena_use {
  uint64_t mapped_bytes; /* all arenas, in size classes */
  uint64_t idle_bytes;   /* of them, kept for reuse     */
} relaxc_arena_use;

/* Bounds idle memory kept for reuse (pool_bytes) and all batch memory (limit_bytes, 0: none).
 * Idle arenas above a lower bound are unmapped; arenas in use never are, and are not kept while
 * they exceed it. */
void relaxc_arena_configure(uint64_t pool_bytes, uint64_t limit_bytes);
/* An arena of at least size bytes, page-aligned. Its bytes are those of its last use. NULL:
 * *why says why, and errno too if it is the system. */
relaxc_arena *relaxc_arena_new(uint64_t size, int *why);
/* The same that other processes can map. Its bytes are 0. */
relaxc_arena *relaxc_arena_new_shared(uint64_t size, int *why);
/* The arena's own descriptor, -1 if it is private. */
int relaxc_arena_fd(const relaxc_arena *arena);
/* A new descriptor for another process: from then on nobody gets a new mapping that could change
 * the file. -1: the arena is private, or there is no descriptor. */
int relaxc_arena_export_fd(const relaxc_arena *arena);
void *relaxc_arena_base(const relaxc_arena *arena);
uint64_t relaxc_arena_size(const relaxc_arena *arena); /* as asked for */
/* Gives the memory back: to the pool, or to the system if the pool is full or this is a forked
 * child, whose copy of the pool nobody uses. */
void relaxc_arena_free(relaxc_arena *arena);
relaxc_arena_use relaxc_arena_usage(void);
/* In the child of fork(): another thread may have held the lock and its thread is gone. */
void relaxc_arena_after_fork(void);

#endif /* RELAXC_ARENA_H */
