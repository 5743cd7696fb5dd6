// SPDX-License-Identifier: Apache-2.0
//
// Run-time dispatch between loops compiled for several instruction sets
// (tools/simd.bzl).
#ifndef CAPSTAN_BASE_SIMD_INSTRUCTION_SET_H_
#define CAPSTAN_BASE_SIMD_INSTRUCTION_SET_H_

#include <cstdint>

namespace capstan {

// Each includes those before it.
enum class InstructionSet {
  kPlain,   // any processor
  kAvx2,    // AVX2, FMA and F16C: Haswell (2013) and later
  kAvx512,  // AVX-512 F, BW, DQ and VL: Skylake-X, Zen 4 and later
};

// The processor's best. Fixed per machine, so runs are reproducible bit by bit.
InstructionSet BestInstructionSet();

// Whether it multiplies bfloat16 in pairs (AVX512-BF16: Cooper Lake, Zen 4 and
// later), besides kAvx512.
bool HasBf16Products();

// Whether this process may multiply bfloat16 in AMX tiles (Sapphire Rapids and
// later), besides kAvx512. The first call asks the kernel, whose answer holds
// for all threads and for processes forked later.
bool HasAmxTiles();

bool OnIntel();

// Whether products of bfloat16 are faster than of float32: in pairs but on
// Intel's processors (docs/decisions/kernels.md has what was measured), or with
// AMX (Sapphire Rapids and later) if the kernel grants it.
bool HasFastBf16Products();

// For a function written once and compiled for each set.
#ifdef __x86_64__
#define SIMD_FUNCTION_AVX2 __attribute__((target("avx2")))
#define SIMD_FUNCTION_AVX512 \
  __attribute__((            \
      target("avx512f,avx512bw,avx512dq,avx512vl,prefer-vector-width=512")))
#else  // never chosen
#define SIMD_FUNCTION_AVX2
#define SIMD_FUNCTION_AVX512
#endif
template <typename Function>
Function BestOf(Function plain, Function avx2, Function avx512) {
  const Function functions[] = {plain, avx2, avx512};
  return functions[static_cast<int>(BestInstructionSet())];
}
// The same for `kFunction`, which must be always_inline. It is compiled with
// the flags of the whole file: #pragma GCC optimize has no effect on it.
template <auto kFunction>
struct ForEachSet;
template <typename... Args, void (*kFunction)(Args...)>
struct ForEachSet<kFunction> {
  static void Plain(Args... args) { kFunction(args...); }
  SIMD_FUNCTION_AVX2 static void Avx2(Args... args) { kFunction(args...); }
  SIMD_FUNCTION_AVX512 static void Avx512(Args... args) { kFunction(args...); }
};
template <auto kFunction>
auto BestOf() {
  using Sets = ForEachSet<kFunction>;
  return BestOf(&Sets::Plain, &Sets::Avx2, &Sets::Avx512);
}

// A family of loop tables, one per instruction set.
template <typename Table>
struct SimdTables {
  const Table* tables[3];  // by InstructionSet

  const Table& best() const {
    return *tables[static_cast<int>(BestInstructionSet())];
  }
  // For tests: writes the tables that this processor can run to `sets`, plain
  // first, and returns how many there are.
  int Runnable(const Table* sets[3]) const {
    const int count = static_cast<int>(BestInstructionSet()) + 1;
    for (int i = 0; i < count; ++i) sets[i] = tables[i];
    return count;
  }
};

}  // namespace capstan

// SIMD_TABLES(Table, kName): the SimdTables<Table> of the tables that a file of
// loops defines as SIMD_SYMBOL(kName) in the same namespace.
#ifdef __x86_64__
#define SIMD_TABLES(Table, name)              \
  extern const Table name##Plain;             \
  extern const Table name##Avx2;              \
  extern const Table name##Avx512;            \
  inline constexpr SimdTables<Table> name = { \
      {&name##Plain, &name##Avx2, &name##Avx512}}
#else
#define SIMD_TABLES(Table, name)  \
  extern const Table name##Plain; \
  inline constexpr SimdTables<Table> name = {{&name##Plain}}
#endif

#endif  // CAPSTAN_BASE_SIMD_INSTRUCTION_SET_H_
