// The public header compiles as C++17 without warnings.
#include <type_traits>

#include "relax_rollout.h"

static_assert(std::is_standard_layout<relax_batch>::value, "a batch is plain data");
static_assert(std::is_same<decltype(&relax_live_batches), int64_t (*)()>::value, "C linkage");

int main() { return RELAX_OK; }
