/*
 * relax_rollout.h: the C ABI of Relax Rollout, and the single truth about it.
 *
 * Pull, never call back. Three verbs carry the library: start a rollout, poll samples, set the
 * weight version. Everything the host must do arrives as an event with an id and is answered
 * with relax_reply.
 *
 *   - Every call may be made from any thread at any time.
 *   - A status is the contract; error text is for people. Nothing is thread-local.
 *   - Strings cross as pointer + length, UTF-8, not NUL-terminated.
 *   - After fork() without exec, every call in the child that would enter the engine returns
 *     RELAX_ERR_FORKED at once. Batch retain/release, views and DLPack keep working there.
 *   - After a panic inside the engine every call returns RELAX_ERR_PANIC with the first stack;
 *     the process lives, and batches already handed out stay valid.
 */
#ifndef RELAX_ROLLOUT_H
#define RELAX_ROLLOUT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RELAX_ABI_VERSION 1u /* breaks    */
#define RELAX_ABI_MINOR 3u   /* additions */

typedef int32_t relax_status;
enum {
  RELAX_OK = 0,
  RELAX_TIMEOUT = 1,      /* nothing arrived within timeout_ms                              */
  RELAX_CLOSED = 2,       /* the engine was closed                                          */
  RELAX_ERR_INVALID = -1, /* an argument is wrong; the text names it                        */
  RELAX_ERR_STATE = -2,   /* the call does not fit the engine's state                       */
  RELAX_ERR_ALREADY = -3, /* an engine is already open in this process                      */
  RELAX_ERR_NOMEM = -4,   /* no memory for a batch                                          */
  RELAX_ERR_IO = -5,      /* operating-system failure                                       */
  RELAX_ERR_BACKEND = -6, /* backend unreachable or not SGLang                              */
  RELAX_ERR_ABI = -7,     /* the caller was built for another ABI                           */
  RELAX_ERR_FORKED = -8,  /* called in a forked child                                       */
  RELAX_ERR_PANIC = -9    /* the engine is poisoned                                         */
};

/* An engine. An integer handle in disguise: never dereferenced, safe to use after close. */
typedef struct relax_engine relax_engine;

/* Error text in the caller's memory. Set struct_size before the call; err may be NULL. The
 * message is NUL-terminated and cut at a UTF-8 boundary if it does not fit. */
typedef struct relax_error {
  uint32_t struct_size;
  int32_t code;
  char message[2040];
} relax_error;

/* Bytes borrowed for the duration of a call. */
typedef struct relax_str {
  const char *ptr;
  size_t len;
} relax_str;

/* Bytes owned by the caller: give them back with relax_bytes_free (pure C). */
typedef struct relax_bytes {
  uint8_t *ptr;
  size_t len;
} relax_bytes;

/* What one element of a column belongs to. */
enum {
  RELAX_DOM_TOKEN = 0,   /* one a token                        */
  RELAX_DOM_SEQ = 1,     /* one a row                          */
  RELAX_DOM_SEQ1 = 2,    /* rows + 1: ragged boundaries        */
  RELAX_DOM_SEGMENT = 3, /* one a weight-version segment       */
  RELAX_DOM_BYTES = 4,   /* raw bytes                          */
  RELAX_DOM_TURN = 5,    /* one a response                     */
  RELAX_DOM_ROUTE = 6,   /* layers x top k for all tokens of a row but the last */
  RELAX_DOM_BATCH = 7    /* of the batch as a whole            */
};

/* A column of a batch. Columns are found by name; skip names you do not know. The names of a
 * batch follow one another in memory in the order of its columns, each with its NUL. */
typedef struct relax_column {
  const char *name;     /* owned by the batch, NUL-terminated  */
  void *data;           /* 64-byte aligned                     */
  int64_t len;          /* elements                            */
  uint64_t byte_offset; /* from the batch's base               */
  uint8_t dl_code;      /* DLPack type code: 0 int 1 uint 2 float */
  uint8_t dl_bits;
  uint16_t domain; /* RELAX_DOM_*                         */
  uint32_t flags;  /* 0                                   */
  uint64_t reserved[2];
} relax_column;

/* A batch: columns in one arena of C memory, with a reference count of its own. The consumer
 * may write in place. */
typedef struct relax_batch {
  uint32_t struct_size;
  uint32_t abi_version;
  uint64_t batch_id;
  int64_t rollout_id;
  int64_t n_seqs;
  int64_t n_tokens;
  int64_t n_segments;
  void *base;
  uint64_t nbytes;
  int32_t fd; /* of a shared batch, the batch's own; -1: private memory */
  uint32_t flags;
  uint32_t n_columns;
  const relax_column *columns;
  void *priv; /* not part of the ABI */
} relax_batch;

/* Kinds of events. */
enum {
  RELAX_EVENT_BATCH = 1,        /* rows, in .batch: one reference, the caller's; in an
                                   Eval one for each dataset that has any, with .json
                                   {"eval": true, "dataset": name, "rollout": id}    */
  RELAX_EVENT_STEP_END = 2,     /* a rollout or an Eval ended: its report            */
  RELAX_EVENT_TASKS_NEEDED = 3, /* {"count"}: reply {"tasks": [...], "end": bool}    */
  RELAX_EVENT_SCORE = 4,        /* {"group_id","sessions"}: reply {"rewards": [...]}
                                   or {"error": text}, which drops the Group; in an
                                   Eval also {"dataset"}                             */
  RELAX_EVENT_LOG = 5,          /* {"level","component","event","text", ...}         */
  RELAX_EVENT_PROGRESS = 6,     /* Sessions: {"rollout","scored","done","total"}, with
                                   agentic_prelaunch and Groups {"prepared"}; samples
                                   of an Eval: {"rollout","eval","dataset","done",
                                   "total"}                                          */
  RELAX_EVENT_ADVANTAGE = 7,    /* {"group_id","sessions"}: reply {"advantages":
                                   [[value, ...], ...] or null} or {"error": text};
                                   a value is a number or a list with one a turn     */
  RELAX_EVENT_FILTER = 8        /* {"group_id","sessions"}: reply {"keep": bool,
                                   "reason": text} or {"error": text}                */
};

typedef struct relax_event {
  uint32_t struct_size; /* set before the call                        */
  uint32_t kind;        /* RELAX_EVENT_*                              */
  uint64_t id;          /* not 0: wants relax_reply                   */
  int64_t rollout_id;
  relax_batch *batch; /* only RELAX_EVENT_BATCH                     */
  relax_bytes json;   /* one object, {NULL, 0} if it has nothing to
                         say; free with relax_bytes_free            */
} relax_event;

/* ---- before anything else (pure C) -------------------------------------------------------- */

/* major << 16 | minor of the library. */
uint32_t relax_abi_version(void);
/* Static JSON: {"version","go","abi"}. */
const char *relax_build_info(void);

/* ---- a model's chat format ------------------------------------------------------------------ */

/* Says how a model would be talked to, or with RELAX_ERR_INVALID why it cannot be. Opens no
 * engine and starts nothing; works beside an open one. options_json is one object, its options
 * are those of relax.DoctorOptions; *report_json is a relax.FormatReport, and {NULL, 0} on
 * failure. (since ABI 1.1) */
relax_status relax_doctor(relax_str options_json, relax_bytes *report_json, relax_error *err);

/* ---- the engine --------------------------------------------------------------------------- */

/* Opens an engine. abi is RELAX_ABI_VERSION of the caller. config_json is one object; options
 * are those of relax.Config. One engine a process: a second gets RELAX_ERR_ALREADY. */
relax_status relax_open(uint32_t abi, relax_str config_json, relax_engine **out, relax_error *err);
/* Queues tasks: a JSON array of {"messages": [...], "metadata": {...}}. */
relax_status relax_submit(relax_engine *engine, relax_str tasks_json, relax_error *err);
/* Starts step rollout_id. Exactly one RELAX_EVENT_STEP_END answers it. */
relax_status relax_start_rollout(relax_engine *engine, int64_t rollout_id, relax_error *err);
/* Starts an Eval under the weights of rollout_id, alone: RELAX_ERR_STATE while a step is open.
 * datasets_json is an array of relax.EvalDataset: {"name", "n_samples", "tasks": [task, ...]},
 * and, for other values than the engine's, "temperature", "top_p", "top_k", "max_response_len"
 * and "metadata". Exactly one RELAX_EVENT_STEP_END answers it, behind the datasets' batches.
 * (since ABI 1.2) */
relax_status relax_start_eval(relax_engine *engine, int64_t rollout_id, relax_str datasets_json,
                              relax_error *err);
/* Says that the trainer took the rows of a partition: the rollout they belong to, as the column
 * partition has it. Only a fully asynchronous engine needs it: max_staleness counts from the
 * oldest partition that was not taken. RELAX_ERR_STATE: it still owes Groups, or no rollout has
 * opened it. (since ABI 1.2) */
relax_status relax_consumed(relax_engine *engine, int64_t partition, relax_error *err);
/* Next event. Waits at most timeout_ms (0: not at all; values over 1000 count as 1000 so that
 * the host can run its signal handlers; negative ones are RELAX_ERR_INVALID). */
relax_status relax_poll(relax_engine *engine, int32_t timeout_ms, relax_event *out, relax_error *err);
/* An eventfd owned by the engine, readable while an event waits and after close. It stays open
 * until the next engine is opened or the process ends, so that a late select() does not meet a
 * descriptor of somebody else. */
relax_status relax_event_fd(relax_engine *engine, int32_t *fd, relax_error *err);
/* Answers an event that has an id. A refused reply leaves the event open. */
relax_status relax_reply(relax_engine *engine, uint64_t id, relax_str json, relax_error *err);
/* The version requests dispatched from now on are sampled under. */
relax_status relax_set_weight_version(relax_engine *engine, int64_t version, relax_error *err);
/* Closes the generation gate; waits at most timeout_ms (as relax_poll) for requests at the
 * backend to be parked. RELAX_TIMEOUT: call again to go on waiting. */
relax_status relax_pause(relax_engine *engine, int32_t timeout_ms, relax_error *err);
/* Opens the gate again. */
relax_status relax_resume(relax_engine *engine, relax_error *err);
/* A JSON snapshot. */
relax_status relax_stats(relax_engine *engine, relax_bytes *json, relax_error *err);
/* Ends the engine: waiters get RELAX_CLOSED, agents are ended (TERM, and KILL after the option
 * "agent_kill_grace"), everything is joined. RELAX_TIMEOUT: something still runs after grace_ms; it
 * goes on ending, and another call waits on. Idempotent. Batches stay valid. */
relax_status relax_close(relax_engine *engine, int32_t grace_ms, relax_error *err);

/* ---- memory (pure C: any thread, any time, after close and in forked children) ------------- */

void relax_batch_retain(relax_batch *batch);
void relax_batch_release(relax_batch *batch);
void relax_bytes_free(relax_bytes *bytes);
/* A DLManagedTensor* (versioned = 0) or DLManagedTensorVersioned* (versioned = 1) over one
 * column, holding a reference until its deleter runs. NULL: no such column, or no memory. */
void *relax_column_dlpack(relax_batch *batch, uint32_t column, int32_t versioned);
/* A descriptor of the memory of a shared batch (option "arena_shared") for another process of this
 * machine: columns lie at their byte_offset in it. The caller closes it. The memory lives until
 * the last process unmaps it; from the first call on new mappings can be read only or MAP_PRIVATE
 * (Linux 5.1 or newer). -1: the batch is not shared, or there is no descriptor left. */
int32_t relax_batch_export_fd(relax_batch *batch);
/* Batches that are still referenced in this process. */
int64_t relax_live_batches(void);

/* ---- signals -------------------------------------------------------------------------------- */

/* 1 if the handlers of SIGSEGV, SIGBUS and SIGFPE are no longer the ones the library found right
 * after it was loaded (faulthandler.enable() after load does that); relax_signals_restore puts
 * them back. */
int32_t relax_signals_check(void);
void relax_signals_restore(void);

#ifdef __cplusplus
}
#endif

#endif /* RELAX_ROLLOUT_H */
