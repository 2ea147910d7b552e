/*
 * error.c: error text into memory of the caller. Nothing to free, nothing thread-local.
 */
#include <string.h>

#include "internal.h"

#define HEAD offsetof(relax_error, message)

/* Bytes of *err that both the caller and this library know. */
static size_t known_size(const relax_error *err) {
  return err->struct_size < sizeof *err ? err->struct_size : sizeof *err;
}

void relaxc_error_clear(relax_error *err) { relaxc_error_set(err, RELAX_OK, "", 0); }

/* The longest prefix of at most room bytes that does not end inside a UTF-8 sequence. */
static size_t cut(const char *text, size_t len, size_t room) {
  if (len <= room) return len;
  size_t n = room;
  while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) n--;
  return n;
}

relax_status relaxc_error_set(relax_error *err, relax_status code, const char *text, size_t len) {
  if (err == NULL) return code;
  size_t size = known_size(err);
  if (size < HEAD) return code;
  err->code = code;
  if (size == HEAD) return code;
  size_t n = cut(text, len, size - HEAD - 1);
  for (size_t i = 0; i < n; i++) err->message[i] = text[i] ? text[i] : ' ';
  err->message[n] = '\0';
  return code;
}
