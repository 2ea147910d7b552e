/*
 * dlpack.c: columns as DLPack tensors. The deleter is plain C and gives one reference back.
 */
#include "dlpack.h"

#include <stdlib.h>

#include "relax_rollout.h"

/* A tensor and all it points to: one allocation, freed by its deleter. */
typedef struct export {
  union {
    relaxc_dl_managed managed;
    relaxc_dl_versioned versioned;
  } as;
  relax_batch *batch;
  int64_t shape, stride;
} export;

static void destroy(export *e) {
  relax_batch *batch = e->batch;
  free(e);
  relax_batch_release(batch);
}

static void delete_managed(relaxc_dl_managed *self) {
  if (self != NULL) destroy(self->manager);
}

static void delete_versioned(relaxc_dl_versioned *self) {
  if (self != NULL) destroy(self->manager);
}

static relaxc_dl_tensor tensor_of(export *e, const relax_column *column) {
  e->shape = column->len;
  e->stride = 1;
  return (relaxc_dl_tensor){
      .data = column->data,
      .device_type = RELAXC_DL_CPU,
      .ndim = 1,
      .code = column->dl_code,
      .bits = column->dl_bits,
      .lanes = 1,
      .shape = &e->shape,
      .strides = &e->stride,
  };
}

void *relax_column_dlpack(relax_batch *batch, uint32_t column, int32_t versioned) {
  if (batch == NULL || column >= batch->n_columns) return NULL;
  export *e = calloc(1, sizeof *e);
  if (e == NULL) return NULL;
  relaxc_dl_tensor tensor = tensor_of(e, &batch->columns[column]);
  relax_batch_retain(batch);
  e->batch = batch;
  if (versioned) {
    e->as.versioned = (relaxc_dl_versioned){.major = RELAXC_DL_MAJOR,
                                            .minor = RELAXC_DL_MINOR,
                                            .manager = e,
                                            .deleter = delete_versioned,
                                            .tensor = tensor};
    return &e->as.versioned;
  }
  e->as.managed =
      (relaxc_dl_managed){.tensor = tensor, .manager = e, .deleter = delete_managed};
  return &e->as.managed;
}
