// SPDX-License-Identifier: Apache-2.0
#include "base/simd/simd.h"

namespace capstan {
namespace kernels {

extern const SimdKernels kSimdPlain;
#ifdef __x86_64__
extern const SimdKernels kSimdAvx2;
extern const SimdKernels kSimdAvx512;
#endif

int RunnableSimdKernels(const SimdKernels *sets[3]) {
  int count = 0;
  sets[count++] = &kSimdPlain;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("f16c")) return count;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets[count++] = &kSimdAvx2;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    sets[count++] = &kSimdAvx512;
  }
#endif
  return count;
}

const SimdKernels &Simd() {
  static const SimdKernels *const best = [] {
    const SimdKernels *sets[3];
    return sets[RunnableSimdKernels(sets) - 1];
  }();
  return *best;
}

}  // namespace kernels
}  // namespace capstan
