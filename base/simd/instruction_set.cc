// SPDX-License-Identifier: Apache-2.0
#include "base/simd/instruction_set.h"

#ifdef __x86_64__
#include <cpuid.h>
#endif

namespace capstan {
namespace {

#ifdef __x86_64__
// __builtin_cpu_supports of clang 14 doesn't know it.
bool HasF16c() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

InstructionSet BestInstructionSet() {
#ifdef __x86_64__
  static const InstructionSet best = [] {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
        !HasF16c()) {
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
