// SPDX-License-Identifier: Apache-2.0
#include "base/simd/instruction_set.h"

#ifdef __x86_64__
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace capstan {
namespace {

#ifdef __x86_64__
// __builtin_cpu_supports of clang 14 doesn't know it.
bool HasF16c() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// Nor this one.
bool HasAvx512Bf16() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned int kBf16 = 1u << 5;  // of EAX in leaf 7.1
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & kBf16) != 0;
}

bool IsGrantedAmx() {
  unsigned int a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned int kBf16AndTiles = (1u << 22) | (1u << 24);  // of EDX
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr int kTileData = 18;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 &&
         (d & kBf16AndTiles) == kBf16AndTiles &&
         syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
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

bool HasBf16Products() {
#ifdef __x86_64__
  static const bool has =
      BestInstructionSet() == InstructionSet::kAvx512 && HasAvx512Bf16();
  return has;
#else
  return false;
#endif
}

bool HasAmxTiles() {
#ifdef __x86_64__
  static const bool has =
      BestInstructionSet() == InstructionSet::kAvx512 && IsGrantedAmx();
  return has;
#else
  return false;
#endif
}

bool OnIntel() {
#ifdef __x86_64__
  return __builtin_cpu_is("intel");
#else
  return false;
#endif
}

bool HasFastBf16Products() {
  return HasAmxTiles() || (HasBf16Products() && !OnIntel());
}

}  // namespace capstan
