/* The public header compiles as C99 without warnings. */
#include "relax_rollout.h"

int main(void) {
  relax_error err;
  relax_event event;
  err.struct_size = sizeof err;
  event.struct_size = sizeof event;
  return RELAX_OK + (int)(err.struct_size == 0) + (int)(event.struct_size == 0);
}
