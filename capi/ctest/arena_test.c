/*
 * arena_test.c: the pure C part of capi without Go, so that it can run under the sanitizers:
 * arenas, batches, DLPack, error text, forked children.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../arena.h"
#include "../batch.h"
#include "../dlpack.h"
#include "../internal.h"
#include "check.h"

#define MIB ((uint64_t)1 << 20)

static relaxc_arena *arena(uint64_t size) {
  int why = 0;
  relaxc_arena *a = relaxc_arena_new(size, &why);
  CHECK(a != NULL);
  return a;
}

static void expect_use(uint64_t mapped, uint64_t idle) {
  relaxc_arena_use now = relaxc_arena_usage();
  CHECK_EQ(now.mapped_bytes, mapped);
  CHECK_EQ(now.idle_bytes, idle);
}

/* Gives everything idle back, so that each test starts from nothing. */
static void empty_pool(void) {
  relaxc_arena_configure(0, 0);
  expect_use(0, 0);
}

static void size_classes_are_powers_of_two(void) {
  relaxc_arena_configure(64 * MIB, 0);
  relaxc_arena *a = arena(1), *b = arena(MIB), *c = arena(MIB + 1), *d = arena(5 * MIB);
  expect_use((1 + 1 + 2 + 8) * MIB, 0);
  CHECK_EQ(relaxc_arena_size(c), MIB + 1);
  CHECK_EQ((uintptr_t)relaxc_arena_base(c) % 64, 0);
  memset(relaxc_arena_base(d), 0xAB, 5 * MIB);
  relaxc_arena_free(a);
  relaxc_arena_free(b);
  relaxc_arena_free(c);
  relaxc_arena_free(d);
  expect_use(12 * MIB, 12 * MIB);
  empty_pool();
}

static void freed_arenas_are_reused(void) {
  relaxc_arena_configure(8 * MIB, 0);
  relaxc_arena *a = arena(3 * MIB);
  void *base = relaxc_arena_base(a);
  relaxc_arena_free(a);
  relaxc_arena *b = arena(4 * MIB);
  CHECK(relaxc_arena_base(b) == base);
  CHECK_EQ(relaxc_arena_size(b), 4 * MIB);
  expect_use(4 * MIB, 0);
  relaxc_arena_free(b);
  empty_pool();
}

static void pool_keeps_to_its_cap(void) {
  relaxc_arena_configure(2 * MIB, 0);
  relaxc_arena *a = arena(2 * MIB), *b = arena(1), *c = arena(8 * MIB);
  relaxc_arena_free(a);
  relaxc_arena_free(b); /* no room beside a */
  relaxc_arena_free(c); /* never fits       */
  expect_use(2 * MIB, 2 * MIB);
  empty_pool();
}

static void limit_refuses_and_evicts(void) {
  int why = 0;
  relaxc_arena_configure(16 * MIB, 4 * MIB);
  relaxc_arena *a = arena(2 * MIB), *b = arena(2 * MIB);
  CHECK(relaxc_arena_new(1, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_LIMIT);
  relaxc_arena_free(a);
  expect_use(4 * MIB, 2 * MIB);
  CHECK(relaxc_arena_new(5 * MIB, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_TOO_LARGE);
  CHECK(relaxc_arena_new(3 * MIB, &why) == NULL); /* evicting a would not be enough */
  expect_use(4 * MIB, 2 * MIB);
  relaxc_arena *c = arena(1); /* evicts a, which is of another class */
  expect_use(3 * MIB, 0);
  relaxc_arena_free(b);
  relaxc_arena_free(c);
  empty_pool();
}

/* An engine may be opened with a lower limit than the one before had. */
static void a_lower_limit_holds_for_what_is_there(void) {
  int why = 0;
  relaxc_arena_configure(16 * MIB, 0);
  relaxc_arena *a = arena(4 * MIB);
  relaxc_arena_free(arena(MIB));
  relaxc_arena_configure(16 * MIB, 2 * MIB);
  expect_use(4 * MIB, 0);
  CHECK(relaxc_arena_new(1, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_LIMIT);
  relaxc_arena_free(a);
  expect_use(0, 0);
  relaxc_arena_free(arena(2 * MIB));
  expect_use(2 * MIB, 2 * MIB);
  empty_pool();
}

static void impossible_size_is_refused(void) {
  int why = 0;
  CHECK(relaxc_arena_new(UINT64_MAX, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_SYSTEM);
  expect_use(0, 0);
}

#ifndef __SANITIZE_THREAD__ /* which cannot live with a refused mapping */
static void system_refusal_gives_idle_memory_back(void) {
  struct rlimit before, tight;
  int why = 0;
  relaxc_arena_configure(8 * MIB, 0);
  relaxc_arena_free(arena(2 * MIB));
  CHECK(getrlimit(RLIMIT_AS, &before) == 0);
  tight = before;
  tight.rlim_cur = 0;
  CHECK(setrlimit(RLIMIT_AS, &tight) == 0);
  relaxc_arena *a = relaxc_arena_new(64 * MIB, &why);
  CHECK(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(a == NULL);
  CHECK_EQ(why, RELAXC_ARENA_SYSTEM);
  expect_use(0, 0);
}
#endif

static void shared_arenas_are_counted_and_not_kept(void) {
  int why = 0;
  relaxc_arena_configure(16 * MIB, 2 * MIB);
  relaxc_arena *a = relaxc_arena_new_shared(MIB + 1, &why);
  CHECK(a != NULL);
  expect_use(2 * MIB, 0);
  CHECK(relaxc_arena_new_shared(1, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_LIMIT);
  CHECK(relaxc_arena_new_shared(UINT64_MAX, &why) == NULL);
  CHECK_EQ(why, RELAXC_ARENA_SYSTEM);
  int fd = relaxc_arena_fd(a);
  CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
  CHECK(ftruncate(fd, 0) == -1 && errno == EPERM);
  relaxc_arena_free(a);
  CHECK(fcntl(fd, F_GETFD) == -1); /* closed */
  expect_use(0, 0);
  empty_pool();
}

/* Another process is played by a second mapping of the descriptor it would get. */
static void exported_memory_outlives_its_arena(void) {
  int why = 0;
  relaxc_arena *a = relaxc_arena_new_shared(100, &why);
  CHECK(a != NULL);
  char *own = relaxc_arena_base(a);
  strcpy(own, "before");
  int fd = relaxc_arena_export_fd(a);
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  CHECK(mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  CHECK_EQ(errno, EPERM);
  CHECK(pwrite(fd, "x", 1, 0) == -1);
  char *seen = mmap(NULL, 100, PROT_READ, MAP_SHARED, fd, 0);
  char *copied = mmap(NULL, 100, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  CHECK(seen != MAP_FAILED && copied != MAP_FAILED);
  strcpy(copied, "mine");
  CHECK(strcmp(seen, "before") == 0);
  strcpy(own, "behind"); /* the owner's own mapping can still be written */
  CHECK(strcmp(seen, "behind") == 0 && strcmp(copied, "mine") == 0);
  int again = relaxc_arena_export_fd(a);
  CHECK(again >= 0 && again != fd);
  close(again);
  relaxc_arena_free(a);
  close(fd);
  CHECK(strcmp(seen, "behind") == 0);
  munmap(seen, 100);
  munmap(copied, 100);
  expect_use(0, 0);

  a = arena(1);
  CHECK_EQ(relaxc_arena_export_fd(a), -1);
  relaxc_arena_free(a);
  empty_pool();
}

static void shared_arenas_need_descriptors(void) {
  struct rlimit before, none;
  int why = 0;
  CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
  relaxc_arena *a = relaxc_arena_new_shared(1, &why);
  none = before;
  none.rlim_cur = 0;
  CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
  errno = 0;
  relaxc_arena *b = relaxc_arena_new_shared(1, &why);
  int cause = errno, fd = relaxc_arena_export_fd(a);
  CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
  CHECK(b == NULL);
  CHECK_EQ(why, RELAXC_ARENA_SYSTEM);
  CHECK_EQ(cause, EMFILE);
  CHECK_EQ(fd, -1);
  relaxc_arena_free(a);
  expect_use(0, 0);
}

/* A batch with tokens (4 int32), empty (0 float32) and reward (2 float64). */
static relax_batch *batch_in(relaxc_arena *a) {
  static const char names[] = "tokensemptyreward";
  const relaxc_column_spec columns[] = {
      {0, 6, 0, 4, RELAX_DOM_TOKEN, 0, 32},
      {6, 5, 64, 0, RELAX_DOM_TOKEN, 2, 32},
      {11, 6, 64, 2, RELAX_DOM_SEQ, 2, 64},
  };
  const relaxc_batch_meta meta = {7, 3, 2, 4, 1};
  memcpy(relaxc_arena_base(a), (int32_t[]){10, 20, 30, 40}, 16);
  memcpy((char *)relaxc_arena_base(a) + 64, (double[]){0.5, -1}, 16);
  relax_batch *b = relaxc_batch_new(a, &meta, columns, 3, names, sizeof names - 1);
  CHECK(b != NULL);
  return b;
}

static relax_batch *batch(void) { return batch_in(arena(80)); }

static void batch_describes_its_columns(void) {
  relax_batch *b = batch();
  CHECK_EQ(b->struct_size, sizeof *b);
  CHECK_EQ(b->abi_version, relax_abi_version());
  CHECK_EQ(b->batch_id, 7);
  CHECK_EQ(b->rollout_id, 3);
  CHECK_EQ(b->n_seqs, 2);
  CHECK_EQ(b->n_tokens, 4);
  CHECK_EQ(b->n_segments, 1);
  CHECK_EQ(b->nbytes, 80);
  CHECK_EQ(b->fd, -1);
  CHECK_EQ(b->n_columns, 3);
  const relax_column *c = b->columns;
  CHECK(strcmp(c[0].name, "tokens") == 0 && strcmp(c[1].name, "empty") == 0);
  CHECK(strcmp(c[2].name, "reward") == 0);
  CHECK_EQ(((int32_t *)c[0].data)[3], 40);
  CHECK(((double *)c[2].data)[1] == -1);
  CHECK(c[2].data == (char *)b->base + c[2].byte_offset);
  CHECK_EQ(c[2].domain, RELAX_DOM_SEQ);
  relax_batch_release(b);
}

static void shared_batches_give_descriptors(void) {
  int why = 0;
  relax_batch *b = batch_in(relaxc_arena_new_shared(80, &why));
  CHECK(b->fd >= 0);
  int fd = relax_batch_export_fd(b);
  CHECK(fd >= 0 && fd != b->fd);
  int32_t token;
  CHECK_EQ(pread(fd, &token, sizeof token, (off_t)(b->columns[0].byte_offset + 8)), 4);
  CHECK_EQ(token, 30);
  close(fd);
  relax_batch_release(b);
  b = batch();
  CHECK_EQ(relax_batch_export_fd(b), -1);
  CHECK_EQ(relax_batch_export_fd(NULL), -1);
  relax_batch_release(b);
}

static void references_keep_a_batch(void) {
  relax_batch *b = batch();
  CHECK_EQ(relax_live_batches(), 1);
  relax_batch_retain(b);
  relax_batch_release(b);
  CHECK_EQ(relax_live_batches(), 1);
  CHECK_EQ(relaxc_batch_usage().bytes, 80);
  CHECK(relaxc_batch_usage().oldest_ns > 0);
  relax_batch *second = batch();
  relax_batch_release(b);
  CHECK_EQ(relax_live_batches(), 1);
  relax_batch_release(second);
  CHECK_EQ(relax_live_batches(), 0);
  CHECK_EQ(relaxc_batch_usage().bytes, 0);
  CHECK_EQ(relaxc_batch_usage().oldest_ns, 0);
  relax_batch_release(NULL);
  relax_batch_retain(NULL);
}

static void dlpack_holds_a_reference(void) {
  relax_batch *b = batch();
  relaxc_dl_managed *old = relax_column_dlpack(b, 0, 0);
  relaxc_dl_versioned *new = relax_column_dlpack(b, 2, 1);
  relaxc_dl_managed *empty = relax_column_dlpack(b, 1, 0);
  CHECK(relax_column_dlpack(b, 3, 0) == NULL);
  CHECK(relax_column_dlpack(NULL, 0, 0) == NULL);
  relax_batch_release(b);
  CHECK_EQ(relax_live_batches(), 1);

  CHECK_EQ(old->tensor.ndim, 1);
  CHECK_EQ(old->tensor.shape[0], 4);
  CHECK_EQ(old->tensor.strides[0], 1);
  CHECK_EQ(old->tensor.code, 0);
  CHECK_EQ(old->tensor.bits, 32);
  CHECK_EQ(old->tensor.lanes, 1);
  CHECK_EQ(old->tensor.device_type, RELAXC_DL_CPU);
  CHECK_EQ(((int32_t *)old->tensor.data)[1], 20);
  CHECK_EQ(new->major, 1);
  CHECK_EQ(new->flags, 0);
  CHECK_EQ(new->tensor.bits, 64);
  CHECK(((double *)new->tensor.data)[0] == 0.5);
  CHECK_EQ(empty->tensor.shape[0], 0);

  old->deleter(old);
  empty->deleter(empty);
  CHECK_EQ(relax_live_batches(), 1);
  new->deleter(new);
  CHECK_EQ(relax_live_batches(), 0);
}

static void bytes_are_copied_and_freed(void) {
  relax_bytes out;
  CHECK_EQ(relaxc_bytes_copy("a\0b", 3, &out), 0);
  CHECK_EQ(out.len, 3);
  CHECK(memcmp(out.ptr, "a\0b", 3) == 0);
  relax_bytes_free(&out);
  CHECK(out.ptr == NULL && out.len == 0);
  relax_bytes_free(&out);
  relax_bytes_free(NULL);
  CHECK_EQ(relaxc_bytes_copy(NULL, 0, &out), 0);
  CHECK(out.ptr == NULL);
}

static void error_text_is_cut_at_utf8(void) {
  static const struct {
    const char *text;
    uint32_t room; /* bytes of message the caller knows */
    const char *want;
  } cases[] = {
      {"plain", 6, "plain"},
      {"plain", 5, "plai"},
      {"plain", 1, ""},
      {"a\xC3\xA9z", 5, "a\xC3\xA9z"},
      {"a\xC3\xA9z", 4, "a\xC3\xA9"},
      {"a\xC3\xA9z", 3, "a"},
      {"\xE2\x82\xAC", 3, ""},
      {"\xF0\x9F\x98\x80!", 5, "\xF0\x9F\x98\x80"},
      {"\xF0\x9F\x98\x80!", 4, ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    relax_error err;
    memset(&err, 'x', sizeof err);
    err.struct_size = (uint32_t)offsetof(relax_error, message) + cases[i].room;
    CHECK_EQ(relaxc_error_set(&err, RELAX_ERR_IO, cases[i].text, strlen(cases[i].text)),
             RELAX_ERR_IO);
    CHECK_EQ(err.code, RELAX_ERR_IO);
    CHECK(strcmp(err.message, cases[i].want) == 0);
    CHECK_EQ(err.message[cases[i].room], 'x'); /* nothing behind struct_size */
  }
}

static void error_respects_struct_size(void) {
  relax_error err;
  memset(&err, 'x', sizeof err);
  err.struct_size = 4;
  relaxc_error_set(&err, RELAX_ERR_IO, "text", 4);
  CHECK_EQ(((char *)&err.code)[0], 'x');
  err.struct_size = 8;
  relaxc_error_set(&err, RELAX_ERR_IO, "text", 4);
  CHECK_EQ(err.code, RELAX_ERR_IO);
  CHECK_EQ(err.message[0], 'x');

  static char longer[4096];
  memset(longer, 'y', sizeof longer);
  err.struct_size = sizeof err + 100; /* a caller built with a larger struct */
  relaxc_error_set(&err, RELAX_ERR_IO, longer, sizeof longer);
  CHECK_EQ(strlen(err.message), sizeof err.message - 1);
  relaxc_error_clear(&err);
  CHECK(err.code == RELAX_OK && err.message[0] == '\0');
  relaxc_error_set(&err, RELAX_ERR_IO, "a\0b", 3);
  CHECK(strcmp(err.message, "a b") == 0);
  CHECK_EQ(relaxc_error_set(NULL, RELAX_ERR_IO, "", 0), RELAX_ERR_IO);
}

static relax_batch *inherited;
static relaxc_dl_managed *inherited_tensor;

static void release_inherited(void) {
  CHECK(relaxc_forked());
  CHECK_EQ(relax_live_batches(), 1);
  CHECK_EQ(((int32_t *)inherited->columns[0].data)[2], 30);
  relax_batch_release(inherited);
  inherited_tensor->deleter(inherited_tensor);
  CHECK_EQ(relax_live_batches(), 0);
  expect_use(0, 0); /* and the pool of the child stayed empty */
}

static void child_releases_its_own_copy(void) {
  relaxc_arena_configure(8 * MIB, 0);
  inherited = batch();
  inherited_tensor = relax_column_dlpack(inherited, 0, 0);
  in_forked_child(release_inherited);
  CHECK(!relaxc_forked());
  CHECK_EQ(relax_live_batches(), 1);
  CHECK_EQ(((int32_t *)inherited->columns[0].data)[2], 30);
  inherited_tensor->deleter(inherited_tensor);
  relax_batch_release(inherited);
  expect_use(MIB, MIB);
  empty_pool();
}

/* The child closes its copy of the descriptor and unmaps; the parent's stay. */
static void child_releases_a_shared_batch(void) {
  int why = 0;
  relaxc_arena_configure(8 * MIB, 0);
  inherited = batch_in(relaxc_arena_new_shared(80, &why));
  inherited_tensor = relax_column_dlpack(inherited, 0, 0);
  in_forked_child(release_inherited);
  CHECK(fcntl(inherited->fd, F_GETFD) >= 0);
  CHECK_EQ(((int32_t *)inherited->columns[0].data)[2], 30);
  inherited_tensor->deleter(inherited_tensor);
  relax_batch_release(inherited);
  expect_use(0, 0);
}

static atomic_int stop;

static void *churn(void *unused) {
  (void)unused;
  while (!atomic_load(&stop)) {
    relax_batch *b = batch();
    relaxc_dl_managed *t = relax_column_dlpack(b, 0, 0);
    relax_batch_release(b);
    t->deleter(t);
  }
  return NULL;
}

static void use_locks_in_child(void) {
  relax_batch_release(inherited);
  relaxc_arena_usage();
  relaxc_batch_usage();
}

/* Some of the forks hit a thread that holds a lock. */
static void forks_amid_churn_do_not_hang(void) {
  relaxc_arena_configure(8 * MIB, 0);
  inherited = batch();
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) CHECK(pthread_create(&threads[i], NULL, churn, NULL) == 0);
  for (int i = 0; i < 100; i++) in_forked_child(use_locks_in_child);
  atomic_store(&stop, 1);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
  relax_batch_release(inherited);
  CHECK_EQ(relax_live_batches(), 0);
  empty_pool();
}

#define SHARERS 4
#define SHARES 20000

static void *share(void *batch) {
  for (int i = 0; i < SHARES; i++) {
    relax_batch_retain(batch);
    relax_batch_release(batch);
  }
  relax_batch_release(batch);
  return NULL;
}

static void threads_share_a_batch(void) {
  relax_batch *b = batch();
  pthread_t threads[SHARERS];
  for (int i = 0; i < SHARERS; i++) {
    relax_batch_retain(b);
    CHECK(pthread_create(&threads[i], NULL, share, b) == 0);
  }
  relax_batch_release(b);
  for (int i = 0; i < SHARERS; i++) pthread_join(threads[i], NULL);
  CHECK_EQ(relax_live_batches(), 0);
}

static void build_info_waits_for_load(void) {
  relaxc_loaded_set("{}");
  CHECK(strcmp(relax_build_info(), "{}") == 0);
  CHECK_EQ(relax_abi_version(), RELAX_ABI_VERSION << 16 | RELAX_ABI_MINOR);
}

int main(void) {
  size_classes_are_powers_of_two();
  freed_arenas_are_reused();
  pool_keeps_to_its_cap();
  limit_refuses_and_evicts();
  a_lower_limit_holds_for_what_is_there();
  impossible_size_is_refused();
#ifndef __SANITIZE_THREAD__
  system_refusal_gives_idle_memory_back();
#endif
  shared_arenas_are_counted_and_not_kept();
  exported_memory_outlives_its_arena();
  shared_arenas_need_descriptors();
  batch_describes_its_columns();
  shared_batches_give_descriptors();
  references_keep_a_batch();
  dlpack_holds_a_reference();
  bytes_are_copied_and_freed();
  error_text_is_cut_at_utf8();
  error_respects_struct_size();
  empty_pool();
  child_releases_its_own_copy();
  child_releases_a_shared_batch();
  build_info_waits_for_load();
  forks_amid_churn_do_not_hang();
  threads_share_a_batch();
  empty_pool();
  puts("arena_test: ok");
  return 0;
}
