/*
 * batch.h: the header of a batch, in ordinary heap memory, so that each process has its own
 * reference count even where the arena is shared.
 */
#ifndef RELAXC_BATCH_H
#define RELAXC_BATCH_H

#include "arena.h"
#include "relax_rollout.h"

/* Plain numbers: Go passes these without a pointer inside. */
typedef struct relaxc_batch_meta {
  uint64_t batch_id;
  int64_t rollout_id;
  int64_t n_seqs, n_tokens, n_segments;
} relaxc_batch_meta;

typedef struct relaxc_column_spec {
  uint32_t name_at, name_len; /* within the names buffer */
  uint64_t byte_offset;       /* within the arena        */
  int64_t len;                /* elements                */
  uint16_t domain;
  uint8_t dl_code, dl_bits;
} relaxc_column_spec;

typedef struct relaxc_batch_use {
  int64_t live;       /* batches still referenced            */
  uint64_t bytes;     /* of their arenas, as asked for       */
  uint64_t oldest_ns; /* age of the oldest of them, 0: none  */
} relaxc_batch_use;

/* A batch over an arena, with one reference. It owns the arena from here on. Copies columns and
 * names. NULL: no memory, and the arena is still the caller's. */
relax_batch *relaxc_batch_new(relaxc_arena *arena, const relaxc_batch_meta *meta,
                              const relaxc_column_spec *columns, uint32_t n_columns,
                              const char *names, size_t names_len);
relaxc_batch_use relaxc_batch_usage(void);
/* In the child of fork(): see relaxc_arena_after_fork. */
void relaxc_batch_after_fork(void);

#endif /* RELAXC_BATCH_H */
