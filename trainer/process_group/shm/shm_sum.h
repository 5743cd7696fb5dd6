// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_

#include <c10/core/ScalarType.h>

#include <cstdint>

namespace capstan {

// out [size] = sources[0] [size] + sources[1] [size] + .. elementwise in this
// order; half floats are summed in float32 and rounded once. At least two
// sources; `out` may be one of them.
using SumFunction = void (*)(const void* const* sources, int count, void* out,
                             int64_t size);

// nullptr for types other than floating-point and integer.
SumFunction SumOf(c10::ScalarType type);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_SHM_SHM_SUM_H_
