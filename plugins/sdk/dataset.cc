// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/dataset.h"

#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace capstan {
namespace {

constexpr char kOnHost[] = "@host";

}  // namespace

const char kTokenCounts[] = "token_counts";

const at::Tensor& RequiredTensor(const Batch& batch, const std::string& name) {
  const auto it = batch.find(name);
  if (it != batch.end()) return it->second;
  std::string others;
  for (const auto& [other, tensor] : batch) {
    if (other == kSamplePosition || absl::EndsWith(other, kOnHost)) continue;
    absl::StrAppend(&others, others.empty() ? "" : ", ", other);
  }
  throw std::invalid_argument(
      absl::StrCat("the batch has no \"", name, "\", only: ", others));
}

std::string HostCopyName(const std::string& name) {
  return absl::StrCat(name, kOnHost);
}

at::Tensor HostTensor(const Batch& batch, const std::string& name) {
  const auto copy = batch.find(HostCopyName(name));
  if (copy != batch.end()) return copy->second;
  const auto it = batch.find(name);
  return it == batch.end() ? at::Tensor() : it->second.cpu();
}

TokenTotals CountTokens(const Batch& batch) {
  TokenTotals totals;
  const int64_t positions = RequiredTensor(batch, kInputIds).numel();
  const auto counts = batch.find(kTokenCounts);
  totals.tokens =
      counts == batch.end() ? positions : counts->second.sum().item<int64_t>();
  totals.padding = positions - totals.tokens;
  return totals;
}

}  // namespace capstan
