/*
 * consumer.c: a host written in C. It opens the engine on the built-in simulator with itself as
 * the agent, runs a step, and uses the batch as a trainer would.
 *
 * usage: consumer story|eval|reopen|unpolled|panic|nil-panic SUPERVISOR
 * The engine starts it as "consumer agent".
 */
#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>

#include "../dlpack.h"
#include "check.h"
#include "relax_rollout.h"

#define GROUPS 2
#define SAMPLES 2

static relax_error err = {.struct_size = sizeof(relax_error)};

/* A call that must succeed. */
#define OK(call)                                                                       \
  do {                                                                                 \
    relax_status status_ = (call);                                                     \
    if (status_ == RELAX_OK) break;                                                    \
    fprintf(stderr, "%s:%d: %s: %d: %s\n", __FILE__, __LINE__, #call, status_, err.message); \
    _exit(1);                                                                          \
  } while (0)

static relax_str str(const char *text) { return (relax_str){text, strlen(text)}; }

/* ---- the agent ------------------------------------------------------------------------------ */

/* One chat request to RELAX_BASE_URL over a plain socket; returns 0 for HTTP 200. */
static int chat(const char *base_url, const char *key, const char *body) {
  char host[64], path[256];
  int port;
  if (sscanf(base_url, "http://%63[^:]:%d%255s", host, &port, path) != 3) return 1;
  size_t end = strlen(path);
  if (path[end - 1] == '/') path[end - 1] = '\0';
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || inet_pton(AF_INET, host, &to.sin_addr) != 1) return 1;
  if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) return 1;
  char request[2048], reply[64] = {0};
  int n = snprintf(request, sizeof request,
                   "POST %s/v1/chat/completions HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer %s\r\n"
                   "Content-Type: application/json\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
                   path, host, key, strlen(body), body);
  if (write(fd, request, (size_t)n) != n) return 1;
  size_t have = 0;
  ssize_t got;
  while (have < 12 && (got = read(fd, reply + have, sizeof reply - 1 - have)) > 0) have += (size_t)got;
  close(fd);
  return strncmp(reply, "HTTP/1.1 200", 12) != 0;
}

static int agent(void) {
  const char *url = getenv("RELAX_BASE_URL"), *key = getenv("RELAX_SESSION_ID");
  const char *output = getenv("RELAX_OUTPUT_JSON");
  if (url == NULL || key == NULL || output == NULL) return 1;
  if (chat(url, key, "{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Say a word.\"}]}"))
    return 2;
  FILE *f = fopen(output, "w");
  if (f == NULL) return 3;
  fputs("{\"reward\": 1.0}", f);
  return fclose(f) == 0 ? 0 : 3;
}

/* ---- the host ------------------------------------------------------------------------------- */

static const char *supervisor;

static relax_engine *open_engine(void) {
  char self[PATH_MAX] = {0}, config[2 * PATH_MAX + 512];
  CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  snprintf(config, sizeof config,
           "{\"agent_command\": \"%s agent\", \"agent_cwd\": \"/\", \"agent_supervisor\": \"%s\","
           " \"backend\": \"simulator\", \"rollout_batch_size\": %d, \"n_samples_per_prompt\": %d}",
           self, supervisor, GROUPS, SAMPLES);
  relax_engine *e = NULL;
  OK(relax_open(RELAX_ABI_VERSION, str(config), &e, &err));
  CHECK(e != NULL);
  return e;
}

static void submit_and_start(relax_engine *e, int64_t rollout) {
  OK(relax_submit(e, str("[{\"metadata\":{\"n\":1}},{\"metadata\":{\"n\":2}}]"), &err));
  OK(relax_set_weight_version(e, 7, &err));
  OK(relax_start_rollout(e, rollout, &err));
}

static int readable(int fd, int timeout_ms) {
  struct pollfd p = {.fd = fd, .events = POLLIN};
  CHECK(poll(&p, 1, timeout_ms) >= 0);
  return (p.revents & POLLIN) != 0;
}

/* Next event, found by the descriptor. Events of other kinds are shown and dropped. */
static relax_event next_event(relax_engine *e, uint32_t kind) {
  int32_t fd;
  OK(relax_event_fd(e, &fd, &err));
  for (time_t end = time(NULL) + 60; time(NULL) < end;) {
    if (!readable(fd, 1000)) continue;
    relax_event event = {.struct_size = sizeof event};
    relax_status status = relax_poll(e, 0, &event, &err);
    if (status == RELAX_TIMEOUT) continue;
    OK(status);
    if (event.kind == kind) return event;
    printf("   event %u: %.*s\n", event.kind, (int)event.json.len, (const char *)event.json.ptr);
    CHECK(event.kind != RELAX_EVENT_STEP_END);
    relax_bytes_free(&event.json);
    relax_batch_release(event.batch);
  }
  CHECK(!"the event within 60 seconds");
  return (relax_event){0};
}

static uint32_t column_index(const relax_batch *b, const char *name) {
  for (uint32_t i = 0; i < b->n_columns; i++)
    if (strcmp(b->columns[i].name, name) == 0) return i;
  fprintf(stderr, "no column %s\n", name);
  _exit(1);
}

static const relax_column *column(const relax_batch *b, const char *name) {
  return &b->columns[column_index(b, name)];
}

static void check_layout(const relax_batch *b) {
  CHECK_EQ(b->struct_size, sizeof *b);
  CHECK_EQ(b->fd, -1);
  for (uint32_t i = 0; i < b->n_columns; i++) {
    const relax_column *c = &b->columns[i];
    CHECK_EQ((uintptr_t)c->data % 64, 0);
    CHECK(c->data == (char *)b->base + c->byte_offset);
    CHECK(c->byte_offset + (uint64_t)c->len * c->dl_bits / 8 <= b->nbytes);
    if (c->domain == RELAX_DOM_TOKEN) CHECK_EQ(c->len, b->n_tokens);
    if (c->domain == RELAX_DOM_SEQ) CHECK_EQ(c->len, b->n_seqs);
    if (c->domain == RELAX_DOM_SEQ1) CHECK_EQ(c->len, b->n_seqs + 1);
    if (c->domain == RELAX_DOM_SEGMENT) CHECK_EQ(c->len, b->n_segments);
  }
}

static void check_rows(const relax_batch *b) {
  CHECK_EQ(b->n_seqs, GROUPS * SAMPLES);
  CHECK(b->n_tokens > 0);
  const int64_t *offsets = column(b, "offsets")->data;
  const int32_t *prompt_len = column(b, "prompt_len")->data;
  const uint8_t *mask = column(b, "loss_mask")->data;
  const float *logprobs = column(b, "logprobs")->data;
  const double *reward = column(b, "reward")->data;
  CHECK_EQ(column(b, "tokens")->dl_bits, 32);
  CHECK_EQ(offsets[0], 0);
  CHECK_EQ(offsets[b->n_seqs], b->n_tokens);
  for (int64_t row = 0; row < b->n_seqs; row++) {
    CHECK(prompt_len[row] > 0 && offsets[row] + prompt_len[row] < offsets[row + 1]);
    CHECK(reward[row] == 1.0);
    for (int64_t i = offsets[row]; i < offsets[row + 1]; i++) {
      int sampled = i >= offsets[row] + prompt_len[row];
      CHECK_EQ(mask[i], sampled); /* one turn: all after the prompt is sampled */
      if (!sampled) CHECK(logprobs[i] == 0);
    }
  }
}

static void check_dlpack(relax_batch *b) {
  uint32_t tokens = column_index(b, "tokens");
  relaxc_dl_managed *old = relax_column_dlpack(b, tokens, 0);
  relaxc_dl_versioned *new = relax_column_dlpack(b, tokens, 1);
  CHECK(old != NULL && new != NULL);
  CHECK(old->tensor.data == b->columns[tokens].data);
  CHECK_EQ(new->tensor.shape[0], b->n_tokens);
  relax_batch_release(b);
  CHECK_EQ(relax_live_batches(), 1);
  old->deleter(old);
  CHECK_EQ(relax_live_batches(), 1);
  CHECK_EQ(((const int32_t *)new->tensor.data)[0], ((const int32_t *)new->tensor.data)[0]);
  new->deleter(new);
  CHECK_EQ(relax_live_batches(), 0);
}

static relax_engine *parent_engine;
static relax_batch *parent_batch;

static void child_of_a_running_engine(void) {
  relax_event event = {.struct_size = sizeof event};
  CHECK_EQ(relax_poll(parent_engine, 1000, &event, &err), RELAX_ERR_FORKED);
  CHECK_HAS(err.message, "spawn");
  CHECK_EQ(relax_close(parent_engine, 1000, &err), RELAX_ERR_FORKED);
  check_rows(parent_batch);
  relax_batch_release(parent_batch);
  CHECK_EQ(relax_live_batches(), 0);
}

static void expect_closed(relax_engine *e, int32_t fd) {
  relax_event event = {.struct_size = sizeof event};
  CHECK(readable(fd, 0));
  CHECK_EQ(relax_poll(e, 0, &event, &err), RELAX_CLOSED);
  CHECK_EQ(relax_submit(e, str("[]"), &err), RELAX_CLOSED);
  CHECK_EQ(relax_start_rollout(e, 9, &err), RELAX_CLOSED);
  OK(relax_close(e, 1000, &err)); /* idempotent */
}

static void story(void) {
  relax_engine *e = open_engine(), *second = NULL;
  CHECK_EQ(relax_open(RELAX_ABI_VERSION, str("{}"), &second, &err), RELAX_ERR_ALREADY);
  CHECK_EQ(relax_submit(e, str("{}"), &err), RELAX_ERR_INVALID);
  CHECK_EQ(relax_submit(e, str("[{\"metdata\":{}}]"), &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "metdata");

  submit_and_start(e, 3);
  CHECK_EQ(relax_start_rollout(e, 4, &err), RELAX_ERR_STATE);
  relax_event event = next_event(e, RELAX_EVENT_BATCH);
  CHECK_EQ(event.rollout_id, 3);
  CHECK_EQ(event.batch->rollout_id, 3);
  check_layout(event.batch);
  check_rows(event.batch);
  relax_event end = next_event(e, RELAX_EVENT_STEP_END);
  CHECK_EQ(end.rollout_id, 3);
  printf("   report: %.*s\n", (int)end.json.len, (const char *)end.json.ptr);
  relax_bytes_free(&end.json);

  relax_bytes stats;
  OK(relax_stats(e, &stats, &err));
  CHECK(stats.len > 2 && memmem(stats.ptr, stats.len, "\"live_batches\":1", 16) != NULL);
  relax_bytes_free(&stats);

  parent_engine = e;
  parent_batch = event.batch;
  in_forked_child(child_of_a_running_engine);

  int32_t fd;
  OK(relax_event_fd(e, &fd, &err));
  OK(relax_close(e, 20000, &err));
  expect_closed(e, fd);
  check_rows(event.batch); /* batches outlive the engine */
  check_dlpack(event.batch);
}

/* The batch of a dataset, which tells its name beside the rows. */
static void expect_dataset(relax_engine *e, const char *says, int64_t rows) {
  relax_event event = next_event(e, RELAX_EVENT_BATCH);
  CHECK_EQ(event.rollout_id, 5);
  CHECK(memmem(event.json.ptr, event.json.len, says, strlen(says)) != NULL);
  CHECK_EQ(event.batch->n_seqs, rows);
  check_layout(event.batch);
  relax_bytes_free(&event.json);
  relax_batch_release(event.batch);
}

static void eval(void) {
  relax_engine *e = open_engine();
  CHECK_EQ(relax_start_eval(e, 5, str("{}"), &err), RELAX_ERR_INVALID);
  CHECK_EQ(relax_start_eval(e, 5, str("[{\"name\":\"a\",\"taks\":[]}]"), &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "datasets_json");
  CHECK_HAS(err.message, "taks");
  OK(relax_start_eval(e, 5,
                      str("[{\"name\":\"twice\",\"n_samples\":2,\"tasks\":[{},{}]},"
                          "{\"name\":\"once\",\"tasks\":[{\"metadata\":{\"n\":1}}]}]"),
                      &err));
  CHECK_EQ(relax_start_eval(e, 6, str("[{\"name\":\"a\",\"tasks\":[{}]}]"), &err), RELAX_ERR_STATE);
  CHECK_EQ(relax_start_rollout(e, 6, &err), RELAX_ERR_STATE);
  expect_dataset(e, "\"dataset\":\"twice\"", 4);
  expect_dataset(e, "\"dataset\":\"once\"", 1);
  relax_event end = next_event(e, RELAX_EVENT_STEP_END);
  CHECK_EQ(end.rollout_id, 5);
  CHECK(memmem(end.json.ptr, end.json.len, "\"eval\":true", 11) != NULL);
  relax_bytes_free(&end.json);
  OK(relax_consumed(e, 5, &err)); /* says nothing new where nothing is asynchronous */
  OK(relax_close(e, 20000, &err));
  CHECK_EQ(relax_consumed(e, 5, &err), RELAX_CLOSED);
  CHECK_EQ(relax_live_batches(), 0);
}

static void reopen(void) {
  relax_engine *first = open_engine();
  int32_t fd;
  OK(relax_event_fd(first, &fd, &err));
  OK(relax_close(first, 20000, &err));
  relax_engine *e = open_engine();
  CHECK(e != first);
  relax_event event = {.struct_size = sizeof event};
  CHECK_EQ(relax_poll(first, 0, &event, &err), RELAX_CLOSED);
  OK(relax_close(first, 0, &err)); /* does not touch the second */
  submit_and_start(e, 0);
  event = next_event(e, RELAX_EVENT_BATCH);
  check_rows(event.batch);
  relax_batch_release(event.batch);
  OK(relax_close(e, 20000, &err));
  CHECK_EQ(relax_live_batches(), 0);
}

/* An engine closed in the middle of a step, with whatever it has not been asked for. */
static void unpolled(void) {
  relax_engine *e = open_engine();
  submit_and_start(e, 0);
  int32_t fd;
  OK(relax_event_fd(e, &fd, &err));
  CHECK(readable(fd, 60000));
  OK(relax_close(e, 20000, &err));
  expect_closed(e, fd);
  CHECK_EQ(relax_live_batches(), 0);
}

static void panics(const char *tasks) {
  relax_engine *e = open_engine(), *second = NULL;
  relax_event event = {.struct_size = sizeof event};
  CHECK_EQ(relax_submit(e, str(tasks), &err), RELAX_ERR_PANIC);
  CHECK_HAS(err.message, "relax: panic in relax_submit");
  CHECK_HAS(err.message, "panicOnRequest");
  CHECK_EQ(relax_poll(e, 100, &event, &err), RELAX_ERR_PANIC);
  CHECK_HAS(err.message, "relax: panic in relax_submit");
  CHECK_EQ(relax_open(RELAX_ABI_VERSION, str("{}"), &second, &err), RELAX_ERR_PANIC);
  CHECK_EQ(relax_close(e, 5000, &err), RELAX_ERR_PANIC);
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "agent") == 0) return agent();
  CHECK(argc == 3);
  supervisor = argv[2];
  if (strcmp(argv[1], "story") == 0) story();
  else if (strcmp(argv[1], "eval") == 0) eval();
  else if (strcmp(argv[1], "reopen") == 0) reopen();
  else if (strcmp(argv[1], "unpolled") == 0) unpolled();
  else if (strcmp(argv[1], "panic") == 0) panics("[{\"metadata\":{\"__panic__\":true}}]");
  else if (strcmp(argv[1], "nil-panic") == 0) panics("[{\"metadata\":{\"__panic__\":\"nil\"}}]");
  else CHECK(!"a known mode");
  printf("consumer %s: ok\n", argv[1]);
  return 0;
}
