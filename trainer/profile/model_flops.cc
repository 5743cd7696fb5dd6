// SPDX-License-Identifier: Apache-2.0
#include "trainer/profile/model_flops.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/model.h"

namespace capstan {
namespace {

// Whether a matrix maps what attention's heads give back to the hidden size.
bool ReadsAttention(absl::string_view name) {
  for (const absl::string_view end :
       {"o_proj.weight", "attn_out.weight", "self_attn.out_proj.weight"}) {
    if (absl::EndsWith(name, end)) return true;
  }
  return false;
}

// Whether it is a factor of an MLP's gate or up.
bool MakesGateOrUp(absl::string_view name) {
  return absl::EndsWith(name, "gate_proj.weight") ||
         absl::EndsWith(name, "up_proj.weight") ||
         absl::EndsWith(name, "ff_proj.weight");
}

// The unit in which parameter `index` is a product's factor; -1: in none.
int UnitOfProduct(const Model& model, int index) {
  const ParameterSpec& spec = model.parameters()[index];
  if (spec.shape.size() != 2) return -1;
  switch (model.role(index)) {
    case ParameterRole::kMatrix:
    case ParameterRole::kHead:
      return spec.unit;
    case ParameterRole::kEmbedding:
      // Tied: the head's.
      return spec.other_units.empty() ? -1 : spec.other_units.back();
    default:
      return -1;
  }
}

int FirstTrainable(const Model& model) {
  int first = static_cast<int>(model.units().size());
  for (const ParameterSpec& spec : model.parameters()) {
    if (spec.trainable) first = std::min(first, spec.unit);
  }
  return first;
}

// FLOPs of each token that goes through a product.
void AddProduct(const TokenShare& share, double flops, ModelFlops::Work* work) {
  work->per_token += flops * share.of_length;
  work->per_row += flops * share.of_row;
}

// FLOPs of each query for each token of its row.
void AddAttention(const TokenShare& share, double flops,
                  ModelFlops::Work* work) {
  work->per_token_and_length += flops * share.of_length;
  work->per_token += flops * share.of_row;
}

}  // namespace

ModelFlops FlopsOf(const Model& model,
                   const std::function<bool(int unit)>& recomputes,
                   bool recomputes_mlp) {
  ModelFlops flops;
  const int first = FirstTrainable(model);
  const std::vector<ParameterSpec>& specs = model.parameters();
  for (size_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    const int index = static_cast<int>(i);
    const absl::optional<TokenShare> known = model.ShareOf(index);
    if (!known.has_value() && absl::StrContains(spec.name, ".experts.")) {
      flops.unknown = "how many of its experts a token takes isn't known";
    }
    const int unit = UnitOfProduct(model, index);
    if (unit < 0) continue;
    const TokenShare share = known.value_or(TokenShare());
    const double forward = 2.0 * static_cast<double>(spec.numel());
    const bool backward = unit >= first;
    const bool again = recomputes != nullptr && recomputes(unit);
    AddProduct(
        share,
        forward * (1.0 + (backward ? 1.0 : 0.0) + (spec.trainable ? 1.0 : 0.0)),
        &flops.all);
    if (again || (backward && recomputes_mlp && MakesGateOrUp(spec.name))) {
      AddProduct(share, forward, &flops.recomputed);
    }
    if (!ReadsAttention(spec.name)) continue;
    // Scores and the sum of values, for each position of the row.
    const double attention = 4.0 * static_cast<double>(spec.shape[1]);
    AddAttention(share, attention * (backward ? 3.0 : 1.0), &flops.all);
    if (again) AddAttention(share, attention, &flops.recomputed);
  }
  if (flops.all.per_token == 0.0) flops.unknown = "it has no matrices";
  return flops;
}

}  // namespace capstan
