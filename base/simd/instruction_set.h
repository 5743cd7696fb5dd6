// SPDX-License-Identifier: Apache-2.0
//
// Which of the loops that were compiled for several instruction sets
// (tools/simd.bzl) this processor runs.
#ifndef CAPSTAN_BASE_SIMD_INSTRUCTION_SET_H_
#define CAPSTAN_BASE_SIMD_INSTRUCTION_SET_H_

namespace capstan {

// Each can run what those before it can.
enum class InstructionSet {
  kPlain,   // any processor
  kAvx2,    // AVX2, FMA and F16C: Haswell (2013) and later
  kAvx512,  // AVX-512 F, BW, DQ and VL: Skylake-X, Zen 4 and later
};

// The processor's best. Constant for a machine, so runs repeat bit by bit.
InstructionSet BestInstructionSet();

// One family's tables of loops, one for each instruction set.
template <typename Table>
struct SimdTables {
  const Table* tables[3];  // by InstructionSet

  const Table& best() const {
    return *tables[static_cast<int>(BestInstructionSet())];
  }
  // The tables that this processor can run, the plain one first: for tests.
  // Returns their number, and writes that many to `sets`.
  int Runnable(const Table* sets[3]) const {
    const int count = static_cast<int>(BestInstructionSet()) + 1;
    for (int i = 0; i < count; ++i) sets[i] = tables[i];
    return count;
  }
};

}  // namespace capstan

// SIMD_TABLES(Table, kName): a SimdTables<Table> of the tables that a file of
// loops has defined as SIMD_SYMBOL(kName), in the same namespace.
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
