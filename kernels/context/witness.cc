// SPDX-License-Identifier: Apache-2.0
#include "kernels/context/witness.h"

#include <atomic>

namespace capstan {
namespace {

std::atomic<ProductWitness*> product_witness{nullptr};
std::atomic<UpdateWitness*> update_witness{nullptr};
std::atomic<KeptWitness*> kept_witness{nullptr};

}  // namespace

ProductWitness::~ProductWitness() = default;
UpdateWitness::~UpdateWitness() = default;
KeptWitness::~KeptWitness() = default;

ProductWitness* CurrentProductWitness() {
  return product_witness.load(std::memory_order_acquire);
}

void SetProductWitness(ProductWitness* witness) {
  product_witness.store(witness, std::memory_order_release);
}

UpdateWitness* CurrentUpdateWitness() {
  return update_witness.load(std::memory_order_acquire);
}

void SetUpdateWitness(UpdateWitness* witness) {
  update_witness.store(witness, std::memory_order_release);
}

KeptWitness* CurrentKeptWitness() {
  return kept_witness.load(std::memory_order_acquire);
}

void SetKeptWitness(KeptWitness* witness) {
  kept_witness.store(witness, std::memory_order_release);
}

}  // namespace capstan
