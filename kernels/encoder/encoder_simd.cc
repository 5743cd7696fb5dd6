// SPDX-License-Identifier: Apache-2.0
#include "kernels/encoder/encoder_simd.h"

namespace capstan {
namespace kernels {

extern const EncoderKernels kEncoderPlain;
#ifdef __x86_64__
extern const EncoderKernels kEncoderAvx2;
extern const EncoderKernels kEncoderAvx512;
#endif

int RunnableEncoderKernels(const EncoderKernels* sets[3]) {
  int count = 0;
  sets[count++] = &kEncoderPlain;
#ifdef __x86_64__
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("f16c")) return count;
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    sets[count++] = &kEncoderAvx2;
  }
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    sets[count++] = &kEncoderAvx512;
  }
#endif
  return count;
}

const EncoderKernels& EncoderSimd() {
  static const EncoderKernels* const best = [] {
    const EncoderKernels* sets[3];
    return sets[RunnableEncoderKernels(sets) - 1];
  }();
  return *best;
}

}  // namespace kernels
}  // namespace capstan
