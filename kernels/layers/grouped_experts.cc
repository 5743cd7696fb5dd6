// SPDX-License-Identifier: Apache-2.0
#include "kernels/layers/grouped_experts.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_grouped_mm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/profile.h"
#include "kernels/context/recompute.h"
#include "kernels/layers/block_parts.h"
#include "kernels/layers/fp8_linear.h"
#include "kernels/layers/gpu_path.h"

namespace capstan::kernels {
namespace {

constexpr int kGate = 0, kUp = 1, kDown = 2, kMatrices = 3;
// As at::_grouped_mm has them.
constexpr int64_t kMostGroups = 1023, kAligned = 8;

// The experts' matrices in the order of their memory.
struct Order {
  explicit Order(const std::vector<StoredLinear>& stored) {
    const auto offset = [&](size_t i) {
      return stored[i].weight.tensor.storage_offset();
    };
    up_first = offset(kUp) < offset(kGate);
    reversed = stored.size() > kMatrices && offset(kMatrices) < offset(0);
  }

  // The index in `stored` of an expert's matrices of a kind, group by group;
  // gate and up by turns.
  std::vector<int> Of(bool down, int experts) const {
    std::vector<int> indices;
    for (int g = 0; g < experts; ++g) {
      const int first = (reversed ? experts - 1 - g : g) * kMatrices;
      if (down) {
        indices.push_back(first + kDown);
      } else {
        indices.push_back(first + (up_first ? kUp : kGate));
        indices.push_back(first + (up_first ? kGate : kUp));
      }
    }
    return indices;
  }

  bool up_first = false, reversed = false;
};

int Experts(const std::vector<StoredLinear>& stored) {
  return static_cast<int>(stored.size()) / kMatrices;
}

// [experts, rows, n], by group, of gate and up or of down.
at::Tensor Stacked(const std::vector<StoredLinear>& stored, bool down) {
  const int experts = Experts(stored);
  std::vector<at::Tensor> matrices;
  for (const int i : Order(stored).Of(down, experts)) {
    matrices.push_back(stored[i].weight.tensor);
  }
  const at::Tensor stack = StackMatrices(matrices, down ? 1 : 2);
  if (stack.defined()) return stack;
  return at::cat(matrices).view({experts, -1, matrices[0].size(1)});
}

at::Tensor GroupedMm(const at::Tensor& a, const at::Tensor& b,
                     const at::Tensor& ends) {
  const ProfileScope profile("matrix products");
  return at::_grouped_mm(a, b, ends);
}

// Adds d [experts, rows, n], by group, to the gradients of gate and up or of
// down.
void AddGradients(const std::vector<StoredLinear>& stored, bool down,
                  const at::Tensor& d,
                  std::vector<StoredGradients>* gradients) {
  const std::vector<int> order = Order(stored).Of(down, Experts(stored));
  std::vector<at::Tensor> into;
  std::vector<double> beta;
  for (const int i : order) {
    const StoredGradients::Target target =
        (*gradients)[i].MatrixOf(LinearPart(stored[i], i));
    into.push_back(target.gradient);
    beta.push_back(target.beta);
  }
  const auto put = [](at::Tensor to, const at::Tensor& from, double beta) {
    if (beta == 0.0) {
      to.copy_(from);
    } else {
      to.add_(from);
    }
  };
  const bool alike = std::all_of(beta.begin(), beta.end(),
                                 [&](double b) { return b == beta[0]; });
  const at::Tensor all =
      alike ? StackMatrices(into, down ? 1 : 2) : at::Tensor();
  if (all.defined()) return put(all, d, beta[0]);
  const at::Tensor each =
      d.reshape({static_cast<int64_t>(order.size()), -1, d.size(2)});
  for (size_t i = 0; i < order.size(); ++i) {
    if (into[i].defined()) put(into[i], each[i], beta[i]);
  }
}

cuda::ChoiceGroups Group(const at::Tensor& expert, const at::Tensor& share,
                         int64_t experts, bool reversed, bool padded) {
  if (const auto* cuda = cuda::For(share)) {
    return cuda::GroupChoices(*cuda, expert, share, experts, reversed, padded);
  }
  const auto numbers = expert.options();
  const int64_t choices = expert.numel();
  const at::Tensor each = at::arange(experts, numbers);
  at::Tensor group = expert.reshape({-1}), shares = share.reshape({-1});
  if (reversed) group = experts - 1 - group;
  at::Tensor row = at::arange(choices, numbers).div(expert.size(1), "floor");
  if (padded) {
    group = at::cat({group, each});
    shares = at::cat({shares, at::zeros({experts}, share.options())});
    row = at::cat({row, at::zeros({experts}, numbers)});
  }
  const auto [sorted, place] =
      at::sort(group, /*stable=*/true, /*dim=*/0, /*descending=*/false);
  at::Tensor order = at::empty({group.numel()}, numbers);
  order.index_copy_(0, place, at::arange(group.numel(), numbers));
  const at::Tensor ends =
      at::searchsorted(sorted, each, /*out_int32=*/true, /*right=*/true);
  at::Tensor chosen = ends.to(at::kFloat);
  chosen.narrow(0, 1, experts - 1).sub_(ends.narrow(0, 0, experts - 1));
  if (padded) chosen.sub_(1.0);
  return {row.index_select(0, place), order.narrow(0, 0, choices),
          shares.index_select(0, place), ends,
          reversed ? chosen.flip({0}) : chosen};
}

// For each row add + the sum over its choices of share * x[their place]; share
// and add may be undefined.
at::Tensor SumChosen(const at::Tensor& x, const at::Tensor& order,
                     int64_t top_k, const at::Tensor& share,
                     const at::Tensor& add) {
  if (const auto* cuda = cuda::For(x)) {
    return cuda::SumChosen(*cuda, x, order, top_k, share, add);
  }
  at::Tensor picked =
      x.index_select(0, order).view({-1, top_k, x.size(1)}).to(at::kFloat);
  if (share.defined()) picked.mul_(share.view({-1, top_k, 1}));
  const at::Tensor sum = picked.sum({1});
  return (add.defined() ? sum + add : sum).to(x.scalar_type());
}

}  // namespace

at::Tensor StackMatrices(const std::vector<at::Tensor>& matrices, int joined) {
  const at::Tensor& first = matrices[0];
  if (!first.defined()) return at::Tensor();
  const int64_t numel = first.numel();
  const auto count = static_cast<int64_t>(matrices.size()) / joined;
  const int64_t apart =
      count == 1 ? joined * numel
                 : matrices[joined].storage_offset() - first.storage_offset();
  if (apart < joined * numel) return at::Tensor();
  for (size_t i = 0; i < matrices.size(); ++i) {
    const at::Tensor& m = matrices[i];
    const auto group = static_cast<int64_t>(i) / joined;
    const int64_t offset = first.storage_offset() + group * apart +
                           static_cast<int64_t>(i) % joined * numel;
    if (!m.defined() || !m.is_contiguous() || m.sizes() != first.sizes() ||
        m.scalar_type() != first.scalar_type() || !m.is_alias_of(first) ||
        m.storage_offset() != offset) {
      return at::Tensor();
    }
  }
  const at::NoGradGuard no_grad;
  return first.as_strided({count, joined * first.size(0), first.size(1)},
                          {apart, first.size(1), 1});
}

bool GroupedExperts::Take(const at::Tensor& x,
                          const std::vector<StoredLinear>& stored) {
  if (!HasGroupedProducts(x) || Experts(stored) > kMostGroups) return false;
  for (const StoredLinear& s : stored) {
    if (s.weight.packed() || s.adapter.defined() || UsesFp8(s.weight) ||
        s.weight.tensor.scalar_type() != x.scalar_type() ||
        s.weight.rows() % kAligned != 0 || s.weight.columns() % kAligned != 0) {
      return false;
    }
  }
  return true;
}

at::Tensor GroupedExperts::Forward(const at::Tensor& x, const at::Tensor& n,
                                   const at::Tensor& expert,
                                   const at::Tensor& share,
                                   const std::vector<StoredLinear>& stored,
                                   bool trained) {
  const Order order(stored);
  top_k_ = expert.size(1);
  groups_ = Group(expert, share, Experts(stored), order.reversed, trained);
  const at::Tensor both = GateAndUp(n.index_select(0, groups_.row), stored);
  if (!RecomputesMlp()) both_ = both;
  const int64_t inner = stored[kGate].weight.rows();
  const at::Tensor gate = both.narrow(1, order.up_first ? inner : 0, inner);
  const at::Tensor up = both.narrow(1, order.up_first ? 0 : inner, inner);
  const at::Tensor out =
      GroupedMm(Gated(Activation::kSilu, gate, up),
                Stacked(stored, /*down=*/true).transpose(1, 2), groups_.ends);
  return SumChosen(out, groups_.order, top_k_, share, x);
}

at::Tensor GroupedExperts::GateAndUp(
    const at::Tensor& rows, const std::vector<StoredLinear>& stored) const {
  return GroupedMm(rows, Stacked(stored, /*down=*/false).transpose(1, 2),
                   groups_.ends);
}

at::Tensor GroupedExperts::Backward(const at::Tensor& n, const at::Tensor& dy,
                                    const std::vector<StoredLinear>& stored,
                                    std::vector<StoredGradients>* gradients,
                                    at::Tensor* dn) {
  const Order order(stored);
  const bool wanted =
      std::any_of(gradients->begin(), gradients->end(),
                  [](const StoredGradients& of) { return of.WantsMatrix(); });
  const int64_t inner = stored[kGate].weight.rows();
  const auto part = [&](const at::Tensor& both, bool up) {
    return both.narrow(1, up == order.up_first ? 0 : inner, inner);
  };
  const at::Tensor share = groups_.share.unsqueeze(1), &ends = groups_.ends;
  if (!both_.defined()) {
    both_ = GateAndUp(n.index_select(0, groups_.row), stored);
  }
  at::Tensor d_out = dy.index_select(0, groups_.row);
  // As if the shares were 1: that of an expert's output is then d_out .
  // (activation Wdown^T) = (d_out Wdown) . activation = d_up . up.
  at::Tensor d_both = at::empty(both_.sizes(), both_.options());
  const at::Tensor up = part(both_, true), d_up = part(d_both, true);
  GatedGradients d =
      GatedBackward(Activation::kSilu, part(both_, false), up,
                    GroupedMm(d_out, Stacked(stored, /*down=*/true), ends),
                    part(d_both, false), d_up);
  const at::Tensor d_share = (d_up * up).sum({-1}, false, at::kFloat);
  d_both.mul_(share);
  if (wanted) {
    d.activation.mul_(share);
    AddGradients(stored, /*down=*/true,
                 GroupedMm(d_out.t(), d.activation, ends), gradients);
    d_out.reset();
    d.activation.reset();
    AddGradients(stored, /*down=*/false,
                 GroupedMm(d_both.t(), n.index_select(0, groups_.row), ends),
                 gradients);
  }
  *dn = SumChosen(GroupedMm(d_both, Stacked(stored, /*down=*/false), ends),
                  groups_.order, top_k_, at::Tensor(), at::Tensor());
  return d_share.index_select(0, groups_.order).view({-1, top_k_});
}

}  // namespace capstan::kernels
