// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/witness.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<ProductWitness*> product_witness{nullptr};
std::atomic<UpdateSums*> update_sums{nullptr};

}  // namespace

ProductWitness::~ProductWitness() = default;

ProductWitness* CurrentProductWitness() {
  return product_witness.load(std::memory_order_acquire);
}

void SetProductWitness(ProductWitness* witness) {
  product_witness.store(witness, std::memory_order_release);
}

UpdateSums* CurrentUpdateSums() {
  return update_sums.load(std::memory_order_acquire);
}

void SetUpdateSums(UpdateSums* sums) {
  update_sums.store(sums, std::memory_order_release);
}

}  // namespace capstan
