/*
 * probe.c: loads the library as Python does, by dlopen, and checks everything that needs no
 * open engine: versions, refused arguments, forked children, fault handlers.
 *
 * usage: probe librelax_rollout.so
 */
#include <dlfcn.h>
#include <signal.h>

#include "check.h"
#include "relax_rollout.h"

static void *lib;

/* The library's symbol, typed as in the header. */
#define CALL(name) ((__typeof__(&name))dlsym(lib, #name))
#define STR(text) ((relax_str){(text), sizeof(text) - 1})

static relax_error err = {.struct_size = sizeof(relax_error)};

static void versions(void) {
  CHECK_EQ(CALL(relax_abi_version)(), RELAX_ABI_VERSION << 16 | RELAX_ABI_MINOR);
  const char *info = CALL(relax_build_info)();
  CHECK_HAS(info, "\"version\":\"");
  CHECK_HAS(info, "\"go\":\"go1.");
  CHECK_HAS(info, "\"abi\":\"1.3\"");
  CHECK_EQ(CALL(relax_live_batches)(), 0);
}

static void bad_arguments(void) {
  relax_engine *e = (relax_engine *)1, *out = e;
  CHECK_EQ(CALL(relax_open)(RELAX_ABI_VERSION + 1, STR("{}"), &out, &err), RELAX_ERR_ABI);
  CHECK_HAS(err.message, "caller was built for ABI 2");
  CHECK_EQ(err.code, RELAX_ERR_ABI);
  CHECK(out == NULL);
  CHECK_EQ(CALL(relax_open)(RELAX_ABI_VERSION, STR("{}"), NULL, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "relax_open: out is NULL");
  CHECK_EQ(CALL(relax_open)(RELAX_ABI_VERSION, (relax_str){NULL, 5}, &out, NULL),
           RELAX_ERR_INVALID);
  CHECK_EQ(CALL(relax_submit)(e, (relax_str){NULL, 5}, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "tasks_json.ptr is NULL");
  CHECK_EQ(CALL(relax_start_eval)(e, 0, (relax_str){NULL, 5}, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "datasets_json.ptr is NULL");
  relax_event event = {0};
  CHECK_EQ(CALL(relax_poll)(e, 0, &event, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "struct_size");
  CHECK_EQ(CALL(relax_poll)(e, 0, NULL, &err), RELAX_ERR_INVALID);
  CHECK_EQ(CALL(relax_event_fd)(e, NULL, &err), RELAX_ERR_INVALID);
  CHECK_EQ(CALL(relax_stats)(e, NULL, &err), RELAX_ERR_INVALID);
}

/* What needs a checkpoint is tested from Python. */
static void doctor(void) {
  relax_bytes report = {(uint8_t *)"", 1};
  CHECK_EQ(CALL(relax_doctor)(STR("{\"hf_checkpoint\":\"/none\"}"), NULL, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "relax_doctor: report_json is NULL");
  CHECK_EQ(CALL(relax_doctor)((relax_str){NULL, 5}, &report, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "options_json.ptr is NULL");
  CHECK_EQ(CALL(relax_doctor)(STR("{\"checkpoint\":\"/none\"}"), &report, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "option checkpoint: unknown option");
  CHECK_EQ(CALL(relax_doctor)(STR("{\"hf_checkpoint\":\"/none\"}"), &report, &err), RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "option hf_checkpoint: ");
  CHECK(report.ptr == NULL && report.len == 0);
}

/* Makes every call that enters the engine and expects the same status from all of them. */
static void every_call(relax_engine *e, relax_status want) {
  relax_event event = {.struct_size = sizeof event};
  relax_bytes json;
  int32_t fd = -1;
  CHECK_EQ(CALL(relax_submit)(e, STR("[]"), &err), want);
  CHECK_EQ(CALL(relax_start_rollout)(e, 0, &err), want);
  CHECK_EQ(CALL(relax_start_eval)(e, 0, STR("[]"), &err), want);
  CHECK_EQ(CALL(relax_consumed)(e, 0, &err), want);
  CHECK_EQ(CALL(relax_poll)(e, 100, &event, &err), want);
  CHECK_EQ(CALL(relax_event_fd)(e, &fd, &err), want);
  CHECK_EQ(fd, -1);
  CHECK_EQ(CALL(relax_reply)(e, 1, STR("{}"), &err), want);
  CHECK_EQ(CALL(relax_set_weight_version)(e, 1, &err), want);
  CHECK_EQ(CALL(relax_pause)(e, 0, &err), want);
  CHECK_EQ(CALL(relax_resume)(e, &err), want);
  CHECK_EQ(CALL(relax_stats)(e, &json, &err), want);
  CHECK_EQ(CALL(relax_close)(e, 0, &err), want);
}

static void unknown_handles(void) {
  every_call(NULL, RELAX_ERR_INVALID);
  CHECK_HAS(err.message, "not a handle of relax_open");
  every_call((relax_engine *)12345, RELAX_ERR_INVALID);
}

static void forked_child(void) {
  relax_engine *out;
  CHECK_EQ(CALL(relax_open)(RELAX_ABI_VERSION, STR("{}"), &out, &err), RELAX_ERR_FORKED);
  CHECK_HAS(err.message, "relax_open: called in a forked child");
  relax_bytes report;
  CHECK_EQ(CALL(relax_doctor)(STR("{}"), &report, &err), RELAX_ERR_FORKED);
  CHECK_HAS(err.message, "\"forkserver\"; subprocess is fine");
  every_call((relax_engine *)1, RELAX_ERR_FORKED);
  CHECK_EQ(CALL(relax_abi_version)() >> 16, RELAX_ABI_VERSION);
  CHECK_HAS(CALL(relax_build_info)(), "version");
  CHECK_EQ(CALL(relax_live_batches)(), 0);
  CHECK_EQ(CALL(relax_signals_check)(), 0);
}

static void foreign(int sig) {
  (void)sig;
  _exit(3);
}

static void fault_handlers(void) {
  const int signals[] = {SIGSEGV, SIGBUS, SIGFPE};
  CHECK_EQ(CALL(relax_signals_check)(), 0);
  for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
    struct sigaction ours = {.sa_handler = foreign}, go, now;
    CHECK(sigaction(signals[i], &ours, &go) == 0);
    CHECK_EQ(CALL(relax_signals_check)(), 1);
    CALL(relax_signals_restore)();
    CHECK_EQ(CALL(relax_signals_check)(), 0);
    CHECK(sigaction(signals[i], NULL, &now) == 0);
    CHECK(now.sa_sigaction == go.sa_sigaction && now.sa_flags == go.sa_flags);
  }
}

/* The host replaces SIGSEGV's handler as soon as dlopen returns, perhaps before Go's init
 * functions ran. Run in an exec'ed process, because only the first load can show it. */
static void early_handler(void) {
  struct sigaction ours = {.sa_handler = foreign, .sa_flags = SA_ONSTACK};
  CHECK(sigaction(SIGSEGV, &ours, NULL) == 0);
  CALL(relax_build_info)(); /* waits for the load */
  CALL(relax_signals_restore)();
  CHECK_EQ(CALL(relax_signals_check)(), 0);
}

int main(int argc, char **argv) {
  CHECK(argc >= 2);
  lib = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (lib == NULL) fprintf(stderr, "%s\n", dlerror());
  CHECK(lib != NULL);
  if (argc > 2) {
    early_handler();
    return 0;
  }
  versions();
  bad_arguments();
  doctor();
  unknown_handles();
  in_forked_child(forked_child);
  fault_handlers();
  puts("probe: ok");
  return 0;
}
