// SPDX-License-Identifier: Apache-2.0
#include "base/simd/instruction_set.h"

namespace capstan {

InstructionSet BestInstructionSet() {
#ifdef __x86_64__
  static const InstructionSet best = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !__builtin_cpu_supports("f16c")) {
      return InstructionSet::kPlain;
    }
    if (__builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl")) {
      return InstructionSet::kAvx512;
    }
    return InstructionSet::kAvx2;
  }();
  return best;
#else
  return InstructionSet::kPlain;
#endif
}

}  // namespace capstan
