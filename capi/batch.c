/*
 * batch.c: see batch.h. Retain and release are pure C, so finalizers work on any thread, at
 * interpreter exit and in forked children.
 */
#include "batch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "internal.h"

/* One allocation: owner, columns, names. */
typedef struct owner {
  relax_batch batch;
  atomic_llong refs;
  relaxc_arena *arena;
  uint64_t born_ns;
  struct owner *older, *newer;
  relax_column columns[];
} owner;

static atomic_llong live;

/* Live batches by age, for stats. */
static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static owner *oldest, *newest;
static uint64_t live_bytes;

static uint64_t now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void enlist(owner *o) {
  o->born_ns = now_ns();
  pthread_mutex_lock(&mu);
  o->older = newest;
  if (newest != NULL) newest->newer = o;
  else oldest = o;
  newest = o;
  live_bytes += o->batch.nbytes;
  pthread_mutex_unlock(&mu);
  atomic_fetch_add(&live, 1);
}

static void delist(owner *o) {
  atomic_fetch_sub(&live, 1);
  if (relaxc_forked()) return; /* the child's copy of the list may be half-changed */
  pthread_mutex_lock(&mu);
  if (o->older != NULL) o->older->newer = o->newer;
  else oldest = o->newer;
  if (o->newer != NULL) o->newer->older = o->older;
  else newest = o->older;
  live_bytes -= o->batch.nbytes;
  pthread_mutex_unlock(&mu);
}

/* Copies columns and NUL-terminated names behind the owner; the header promises that the names
 * follow one another. */
static void describe(owner *o, const relaxc_column_spec *specs, uint32_t n, const char *names) {
  char *text = (char *)(o->columns + n);
  for (uint32_t i = 0; i < n; i++) {
    const relaxc_column_spec *s = &specs[i];
    relax_column *c = &o->columns[i];
    memcpy(text, names + s->name_at, s->name_len);
    c->name = text;
    text += s->name_len + 1; /* calloc wrote the NUL */
    c->byte_offset = s->byte_offset;
    c->data = (char *)o->batch.base + s->byte_offset;
    c->len = s->len;
    c->dl_code = s->dl_code;
    c->dl_bits = s->dl_bits;
    c->domain = s->domain;
  }
}

relax_batch *relaxc_batch_new(relaxc_arena *arena, const relaxc_batch_meta *meta,
                              const relaxc_column_spec *columns, uint32_t n_columns,
                              const char *names, size_t names_len) {
  owner *o = calloc(1, sizeof *o + n_columns * sizeof(relax_column) + names_len + n_columns);
  if (o == NULL) return NULL;
  o->arena = arena;
  atomic_init(&o->refs, 1);
  o->batch = (relax_batch){
      .struct_size = sizeof(relax_batch),
      .abi_version = relax_abi_version(),
      .batch_id = meta->batch_id,
      .rollout_id = meta->rollout_id,
      .n_seqs = meta->n_seqs,
      .n_tokens = meta->n_tokens,
      .n_segments = meta->n_segments,
      .base = relaxc_arena_base(arena),
      .nbytes = relaxc_arena_size(arena),
      .fd = relaxc_arena_fd(arena),
      .n_columns = n_columns,
      .columns = o->columns,
      .priv = o,
  };
  describe(o, columns, n_columns, names);
  enlist(o);
  return &o->batch;
}

void relax_batch_retain(relax_batch *batch) {
  if (batch == NULL) return;
  owner *o = batch->priv;
  atomic_fetch_add_explicit(&o->refs, 1, memory_order_relaxed);
}

void relax_batch_release(relax_batch *batch) {
  if (batch == NULL) return;
  owner *o = batch->priv;
  /* acq_rel: writes of all other holders happen before the memory is used again. */
  if (atomic_fetch_sub_explicit(&o->refs, 1, memory_order_acq_rel) != 1) return;
  delist(o);
  relaxc_arena_free(o->arena);
  free(o);
}

int32_t relax_batch_export_fd(relax_batch *batch) {
  if (batch == NULL) return -1;
  return relaxc_arena_export_fd(((owner *)batch->priv)->arena);
}

int64_t relax_live_batches(void) { return atomic_load(&live); }

relaxc_batch_use relaxc_batch_usage(void) {
  relaxc_batch_use out = {.live = relax_live_batches()};
  pthread_mutex_lock(&mu);
  out.bytes = live_bytes;
  uint64_t born = oldest != NULL ? oldest->born_ns : 0;
  pthread_mutex_unlock(&mu);
  if (born != 0) out.oldest_ns = now_ns() - born;
  return out;
}

void relaxc_batch_after_fork(void) {
  pthread_mutex_init(&mu, NULL);
  oldest = newest = NULL;
  live_bytes = 0;
}
