// SPDX-License-Identifier: Apache-2.0
#include "datasets/darkroom/ppo_kernels.h"

#include "base/simd/simd.h"

namespace capstan {
namespace darkroom {

extern const PpoKernels kPpoPlain;
#ifdef __x86_64__
extern const PpoKernels kPpoAvx2;
extern const PpoKernels kPpoAvx512;
#endif

int RunnablePpoKernels(const PpoKernels* sets[3]) {
  static const PpoKernels* const all[] = {
      &kPpoPlain,
#ifdef __x86_64__
      &kPpoAvx2,
      &kPpoAvx512,
#endif
  };
  const kernels::SimdKernels* runnable[3];
  const int count = kernels::RunnableSimdKernels(runnable);
  for (int i = 0; i < count; ++i) sets[i] = all[i];
  return count;
}

const PpoKernels& BestPpoKernels() {
  static const PpoKernels* const best = [] {
    const PpoKernels* sets[3];
    return sets[RunnablePpoKernels(sets) - 1];
  }();
  return *best;
}

}  // namespace darkroom
}  // namespace capstan
