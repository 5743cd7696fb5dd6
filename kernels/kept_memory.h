// SPDX-License-Identifier: Apache-2.0
//
// For nodes: tensors that a forward leaves to its backward, as the run's
// KeptWitness watches them.
#ifndef CAPSTAN_KERNELS_KEPT_MEMORY_H_
#define CAPSTAN_KERNELS_KEPT_MEMORY_H_

#include <ATen/core/Tensor.h>

#include "kernels/context/witness.h"

namespace capstan::kernels {

inline KeptWitness* WitnessOf(const at::Tensor& t) {
  KeptWitness* const witness = CurrentKeptWitness();
  if (witness == nullptr || !t.defined() || !t.is_cpu()) return nullptr;
  return t.is_contiguous() ? witness : nullptr;
}

inline void TakeKept(const at::Tensor& t) {
  KeptWitness* const witness = WitnessOf(t);
  if (witness != nullptr) witness->Take(t.const_data_ptr(), t.nbytes());
}

inline void CheckKept(const at::Tensor& t) {
  KeptWitness* const witness = WitnessOf(t);
  // What was read only so far may have been one tensor's for several nodes.
  if (witness != nullptr) {
    witness->Check(const_cast<void*>(t.const_data_ptr()), t.nbytes());
  }
}

inline void DropKept(const at::Tensor& t) {
  KeptWitness* const witness = WitnessOf(t);
  if (witness != nullptr) witness->Drop(t.const_data_ptr());
}

}  // namespace capstan::kernels

#endif  // CAPSTAN_KERNELS_KEPT_MEMORY_H_
