// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace capstan {

// out [size] = sources[0] [size] + sources[1] [size] + .. in this order,
// element by element; half floats are summed in float32 and rounded once. There
// are at least two sources; `out` may be one of them.
using SumFunction = void (*)(const void* const* sources, int count, void* out,
                             int64_t size);

// For the floating-point and integer types; nullptr for others.
SumFunction SumOf(c10::ScalarType type);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
