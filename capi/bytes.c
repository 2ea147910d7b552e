/*
 * bytes.c: byte strings handed to the host.
 */
#include <stdlib.h>
#include <string.h>

#include "internal.h"

int relaxc_bytes_copy(const void *ptr, size_t len, relax_bytes *out) {
  out->ptr = NULL;
  out->len = 0;
  if (len == 0) return 0;
  out->ptr = malloc(len);
  if (out->ptr == NULL) return -1;
  memcpy(out->ptr, ptr, len);
  out->len = len;
  return 0;
}

void relax_bytes_free(relax_bytes *bytes) {
  if (bytes == NULL) return;
  free(bytes->ptr);
  bytes->ptr = NULL;
  bytes->len = 0;
}
