/*
 * dlpack.h: the part of DLPack's memory layout that a one-dimensional CPU column needs.
 * Field order and types follow DLPack 1.0; names are our own.
 */
#ifndef RELAXC_DLPACK_H
#define RELAXC_DLPACK_H

#include <stdint.h>

#define RELAXC_DL_CPU 1
#define RELAXC_DL_MAJOR 1u
#define RELAXC_DL_MINOR 0u

typedef struct relaxc_dl_tensor {
  void *data;
  int32_t device_type;
  int32_t device_id;
  int32_t ndim;
  uint8_t code; /* 0 int, 1 uint, 2 float */
  uint8_t bits;
  uint16_t lanes;
  int64_t *shape;
  int64_t *strides; /* in elements */
  uint64_t byte_offset;
} relaxc_dl_tensor;

/* Capsule "dltensor". */
typedef struct relaxc_dl_managed {
  relaxc_dl_tensor tensor;
  void *manager;
  void (*deleter)(struct relaxc_dl_managed *self);
} relaxc_dl_managed;

/* Capsule "dltensor_versioned". */
typedef struct relaxc_dl_versioned {
  uint32_t major, minor;
  void *manager;
  void (*deleter)(struct relaxc_dl_versioned *self);
  uint64_t flags; /* 0: writable, not a copy */
  relaxc_dl_tensor tensor;
} relaxc_dl_versioned;

#endif /* RELAXC_DLPACK_H */
