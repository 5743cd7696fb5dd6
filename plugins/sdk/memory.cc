// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/memory.h"

namespace capstan {
namespace {

thread_local MemoryCategory current_category = MemoryCategory::kOther;

}  // namespace

const char* MemoryCategoryName(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::kOther:
      return "other";
    case MemoryCategory::kParameters:
      return "parameters";
    case MemoryCategory::kGradients:
      return "gradients";
    case MemoryCategory::kMasters:
      return "masters";
    case MemoryCategory::kOptimizerState:
      return "optimizer_state";
    case MemoryCategory::kBuckets:
      return "buckets";
    case MemoryCategory::kActivations:
      return "activations";
    case MemoryCategory::kLogits:
      return "logits";
    case MemoryCategory::kWorkspace:
      return "workspace";
  }
  return "other";
}

MemoryScope::MemoryScope(MemoryCategory category) : before_(current_category) {
  current_category = category;
}

MemoryScope::~MemoryScope() { current_category = before_; }

MemoryCategory CurrentMemoryCategory() { return current_category; }

}  // namespace capstan
