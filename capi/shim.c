/*
 * shim.c: the public calls that enter Go. Each refuses a forked child and broken arguments in
 * C, then calls the Go export of the same name (relaxgo_*). Handles cross as integers, because
 * Go must not see a small number where it expects a pointer.
 */
#include <stdio.h>
#include <string.h>

#include "_cgo_export.h"
#include "internal.h"

static relax_status fail(relax_error *err, relax_status code, const char *call, const char *text) {
  char message[512];
  int n = snprintf(message, sizeof message, "%s: %s", call, text);
  if (n < 0) n = 0;
  if ((size_t)n >= sizeof message) n = sizeof message - 1;
  return relaxc_error_set(err, code, message, (size_t)n);
}

static relax_status enter(relax_error *err, const char *call) {
  relaxc_error_clear(err);
  if (!relaxc_forked()) return RELAX_OK;
  return fail(err, RELAX_ERR_FORKED, call,
              "called in a forked child of the process that loaded the engine, where it cannot "
              "run. Start worker processes before the engine, or start them with the "
              "multiprocessing method \"spawn\" or \"forkserver\"; subprocess is fine");
}

#define ENTER(err)                                \
  do {                                            \
    relax_status refused = enter((err), __func__); \
    if (refused != RELAX_OK) return refused;      \
  } while (0)

/* Refuses an argument. */
#define REFUSE(err, text) return fail((err), RELAX_ERR_INVALID, __func__, (text))
#define NEED(err, pointer)                                    \
  do {                                                        \
    if ((pointer) == NULL) REFUSE((err), #pointer " is NULL"); \
  } while (0)
#define NEED_STR(err, str)                                                       \
  do {                                                                           \
    if ((str).ptr == NULL && (str).len != 0) REFUSE((err), #str ".ptr is NULL"); \
  } while (0)

static uintptr_t id(const relax_engine *engine) { return (uintptr_t)engine; }

relax_status relax_doctor(relax_str options_json, relax_bytes *report_json, relax_error *err) {
  ENTER(err);
  NEED(err, report_json);
  *report_json = (relax_bytes){NULL, 0};
  NEED_STR(err, options_json);
  return relaxgo_doctor((char *)options_json.ptr, options_json.len, report_json, err);
}

relax_status relax_open(uint32_t abi, relax_str config_json, relax_engine **out,
                        relax_error *err) {
  ENTER(err);
  NEED(err, out);
  *out = NULL;
  if (abi != RELAX_ABI_VERSION) {
    char text[128];
    snprintf(text, sizeof text,
             "the caller was built for ABI %u, the library has ABI %u; install matching versions",
             abi, RELAX_ABI_VERSION);
    return fail(err, RELAX_ERR_ABI, __func__, text);
  }
  NEED_STR(err, config_json);
  uintptr_t handle = 0;
  relax_status status = relaxgo_open((char *)config_json.ptr, config_json.len, &handle, err);
  if (status == RELAX_OK) *out = (relax_engine *)handle;
  return status;
}

relax_status relax_submit(relax_engine *engine, relax_str tasks_json, relax_error *err) {
  ENTER(err);
  NEED_STR(err, tasks_json);
  return relaxgo_submit(id(engine), (char *)tasks_json.ptr, tasks_json.len, err);
}

relax_status relax_start_rollout(relax_engine *engine, int64_t rollout_id, relax_error *err) {
  ENTER(err);
  return relaxgo_start_rollout(id(engine), rollout_id, err);
}

relax_status relax_start_eval(relax_engine *engine, int64_t rollout_id, relax_str datasets_json,
                              relax_error *err) {
  ENTER(err);
  NEED_STR(err, datasets_json);
  return relaxgo_start_eval(id(engine), rollout_id, (char *)datasets_json.ptr, datasets_json.len,
                            err);
}

relax_status relax_consumed(relax_engine *engine, int64_t partition, relax_error *err) {
  ENTER(err);
  return relaxgo_consumed(id(engine), partition, err);
}

relax_status relax_poll(relax_engine *engine, int32_t timeout_ms, relax_event *out,
                        relax_error *err) {
  ENTER(err);
  NEED(err, out);
  if (out->struct_size < sizeof *out)
    REFUSE(err, "out->struct_size is smaller than relax_event; set it before the call");
  out->kind = 0;
  out->id = 0;
  out->rollout_id = 0;
  out->batch = NULL;
  out->json = (relax_bytes){NULL, 0};
  return relaxgo_poll(id(engine), timeout_ms, out, err);
}

relax_status relax_event_fd(relax_engine *engine, int32_t *fd, relax_error *err) {
  ENTER(err);
  NEED(err, fd);
  *fd = -1;
  return relaxgo_event_fd(id(engine), fd, err);
}

relax_status relax_reply(relax_engine *engine, uint64_t event_id, relax_str json,
                         relax_error *err) {
  ENTER(err);
  NEED_STR(err, json);
  return relaxgo_reply(id(engine), event_id, (char *)json.ptr, json.len, err);
}

relax_status relax_set_weight_version(relax_engine *engine, int64_t version, relax_error *err) {
  ENTER(err);
  return relaxgo_set_weight_version(id(engine), version, err);
}

relax_status relax_pause(relax_engine *engine, int32_t timeout_ms, relax_error *err) {
  ENTER(err);
  return relaxgo_pause(id(engine), timeout_ms, err);
}

relax_status relax_resume(relax_engine *engine, relax_error *err) {
  ENTER(err);
  return relaxgo_resume(id(engine), err);
}

relax_status relax_stats(relax_engine *engine, relax_bytes *json, relax_error *err) {
  ENTER(err);
  NEED(err, json);
  *json = (relax_bytes){NULL, 0};
  return relaxgo_stats(id(engine), json, err);
}

relax_status relax_close(relax_engine *engine, int32_t grace_ms, relax_error *err) {
  ENTER(err);
  return relaxgo_close(id(engine), grace_ms, err);
}
