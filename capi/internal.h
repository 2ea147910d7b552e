/*
 * internal.h: what the C files of capi and its Go side share. Nothing here leaves the library
 * (relax.map); names start with relaxc_.
 */
#ifndef RELAXC_INTERNAL_H
#define RELAXC_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "relax_rollout.h"

/* ---- fork.c ---- */

/* 1 in a child made by fork() without exec after this library was loaded. One relaxed load. */
int relaxc_forked(void);

/* ---- error.c ---- */

/* Forgets an earlier failure in *err. err may be NULL. */
void relaxc_error_clear(relax_error *err);
/* Writes code and text into *err as far as its struct_size allows, cut at a UTF-8 boundary and
 * NUL-terminated; NUL bytes of the text become spaces. Returns code. err may be NULL. */
relax_status relaxc_error_set(relax_error *err, relax_status code, const char *text, size_t len);

/* ---- bytes.c ---- */

/* Copies len bytes into *out, which the host frees with relax_bytes_free. len 0 gives
 * {NULL, 0}. Returns 0, or -1 if there is no memory. */
int relaxc_bytes_copy(const void *ptr, size_t len, relax_bytes *out);

/* ---- info.c ---- */

/* Called once, by Go's last initialiser: all Go init functions have run. json is kept. */
void relaxc_loaded_set(const char *json);
/* Waits until then. Returns 0 only in a child forked before then, where it will never happen. */
int relaxc_loaded_wait(void);

/* ---- signals.c ---- */

/* Remembers the fault handlers that the Go runtime installed. */
void relaxc_signals_save(void);

#endif /* RELAXC_INTERNAL_H */
