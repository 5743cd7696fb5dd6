// SPDX-License-Identifier: Apache-2.0
//
// Data types and reductions of the stand-in NCCL.
#ifndef CAPSTAN_TESTING_STANDIN_NCCL_ARITHMETIC_H_
#define CAPSTAN_TESTING_STANDIN_NCCL_ARITHMETIC_H_

#include <nccl.h>

#include <cstdint>

namespace capstan::standin {

// Bytes of an element; 0 for a type that NCCL doesn't have.
int64_t WidthOf(ncclDataType_t type);

// "float32"
const char* NameOf(ncclDataType_t type);

// Whether elements of this type can be reduced: all but the 8-bit floats.
bool Reducible(ncclDataType_t type);

// How elements are reduced. A scalar multiplies each input first (PreMulSum).
struct Reduction {
  ncclRedOp_t op = ncclSum;  // of the first five
  bool scaled = false;
  double scale = 1.0;
};

// out[i] = sources[0][i] op sources[1][i] op .., in this order: 16-bit floats
// in float32 and rounded once, to nearest; others in their own type. ncclAvg
// divides the sum by `count`. `out` may be one of the sources.
void Reduce(const Reduction& reduction, ncclDataType_t type,
            const void* const* sources, int count, void* out, int64_t size);

// The value of a scalar in host memory, or where the host sees it.
double ScalarAt(const void* p, ncclDataType_t type);

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_NCCL_ARITHMETIC_H_
