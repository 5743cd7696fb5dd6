// SPDX-License-Identifier: Apache-2.0
#include "plugins/model/decoder/shared_prefixes.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "kernels/keep.h"

namespace capstan::decoder {
namespace {

// A shorter beginning isn't worth its copies.
constexpr int64_t kShortest = 8;

// How many tokens of each row its last target needs.
std::vector<int64_t> EndsOf(const at::Tensor& targets, int64_t batch,
                            int64_t length) {
  const at::Tensor dense = targets.contiguous();
  const int64_t* const target = dense.const_data_ptr<int64_t>();
  std::vector<int64_t> ends(batch, 0);
  for (int64_t i = 0; i < dense.numel(); ++i) {
    int64_t& end = ends[i / length % batch];
    if (target[i] >= 0) end = std::max(end, i % length + 1);
  }
  return ends;
}

using Prefixes = std::shared_ptr<SharedPrefixes>;

class WholeRows : public torch::autograd::Function<WholeRows> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* ctx,
                            const at::Tensor& x, const Prefixes& shared) {
    return kernels::Keep(ctx, shared)->ToAttention(x);
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* ctx,
      torch::autograd::variable_list grads) {
    return {kernels::KeptOf<Prefixes>(ctx)->ToAttentionBackward(grads[0]),
            at::Tensor()};
  }
};

}  // namespace

std::shared_ptr<SharedPrefixes> SharedPrefixes::Find(const at::Tensor& tokens,
                                                     const at::Tensor& targets,
                                                     double most) {
  auto shared = std::shared_ptr<SharedPrefixes>(new SharedPrefixes);
  shared->batch_ = tokens.size(0);
  shared->length_ = tokens.size(1);
  const std::vector<int64_t> ends =
      EndsOf(targets, shared->batch_, shared->length_);
  shared->groups_ = GroupsOf(tokens, ends);
  shared->Place(ends);
  const int64_t computed = shared->places_.numel();
  const auto all = static_cast<double>(tokens.numel());
  if (computed == 0 || static_cast<double>(computed) > most * all) {
    return nullptr;
  }
  return shared;
}

// Rows in the order of a dictionary: each one's longest common beginnings are
// with its neighbours.
std::vector<SharedPrefixes::Group> SharedPrefixes::GroupsOf(
    const at::Tensor& tokens, const std::vector<int64_t>& ends) {
  const at::Tensor dense = tokens.contiguous();
  const int64_t* const ids = dense.const_data_ptr<int64_t>();
  const int64_t length = tokens.size(1);
  const auto begin = [&](int64_t row) { return ids + row * length; };
  const auto end = [&](int64_t row) { return begin(row) + ends[row]; };
  std::vector<int64_t> rows(tokens.size(0));
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int64_t a, int64_t b) {
    return std::lexicographical_compare(begin(a), end(a), begin(b), end(b));
  });
  std::vector<Group> groups;
  for (const int64_t row : rows) {
    if (!groups.empty()) {
      Group& last = groups.back();
      const int64_t before = last.rows.back();
      const int64_t common =
          std::mismatch(begin(row), end(row), begin(before), end(before))
              .first -
          begin(row);
      const int64_t shared = std::min(common, last.length);
      const auto count = static_cast<int64_t>(last.rows.size());
      // With one row more the group saves more, if of fewer tokens.
      const int64_t saved = (count - 1) * last.length;
      if (shared >= kShortest && count * shared > (count > 1 ? saved : 0)) {
        last.rows.push_back(row);
        last.length = shared;
        continue;
      }
    }
    groups.push_back({{row}, ends[row], 0});
  }
  groups.erase(
      std::remove_if(groups.begin(), groups.end(),
                     [](const Group& group) { return group.rows.size() < 2; }),
      groups.end());
  return groups;
}

void SharedPrefixes::Place(const std::vector<int64_t>& ends) {
  std::vector<int64_t> places;
  const auto place = [&](int64_t row, int64_t begin, int64_t end) {
    const auto first = static_cast<int64_t>(places.size());
    for (int64_t t = begin; t < end; ++t) places.push_back(row * length_ + t);
    return first;
  };
  std::vector<int64_t> begins(batch_, 0);
  for (Group& group : groups_) {
    group.first = place(group.rows[0], 0, group.length);
    for (const int64_t row : group.rows) begins[row] = group.length;
  }
  for (int64_t row = 0; row < batch_; ++row) {
    const int64_t begin = begins[row], end = ends[row];
    if (begin == end) continue;
    rests_.push_back({row, begin, end - begin, place(row, begin, end)});
  }
  places_ = at::tensor(places, at::kLong);
}

at::Tensor SharedPrefixes::Whole(const at::Tensor& x) {
  return WholeRows::apply(x, shared_from_this());
}

at::Tensor SharedPrefixes::ToAttention(const at::Tensor& x) {
  const int64_t width = x.size(1);
  at::Tensor whole = at::zeros({batch_, length_, width}, x.options());
  for (const Group& group : groups_) {
    const at::Tensor prefix = x.narrow(0, group.first, group.length);
    for (const int64_t row : group.rows) {
      whole[row].narrow(0, 0, group.length).copy_(prefix);
    }
  }
  CopyRests(x, whole, /*to_whole=*/true);
  return whole.view({-1, width});
}

at::Tensor SharedPrefixes::ToAttentionBackward(const at::Tensor& dy) {
  const int64_t width = dy.size(1);
  const at::Tensor rows = dy.view({batch_, length_, width});
  at::Tensor sum = at::empty({places_.numel(), width}, dy.options());
  for (const Group& group : groups_) {
    // One after the other, for the same bits with any number of threads.
    at::Tensor total =
        at::zeros({group.length, width},
                  dy.options().dtype(at::toOpMathType(dy.scalar_type())));
    for (const int64_t row : group.rows) {
      total += rows[row].narrow(0, 0, group.length);
    }
    sum.narrow(0, group.first, group.length).copy_(total);
  }
  CopyRests(sum, rows, /*to_whole=*/false);
  return sum;
}

at::Tensor SharedPrefixes::FromAttention(const at::Tensor& x) {
  const int64_t width = x.size(1);
  const at::Tensor rows = x.view({batch_, length_, width});
  at::Tensor computed = at::empty({places_.numel(), width}, x.options());
  for (const Group& group : groups_) {
    computed.narrow(0, group.first, group.length)
        .copy_(rows[group.rows[0]].narrow(0, 0, group.length));
  }
  CopyRests(computed, rows, /*to_whole=*/false);
  return computed;
}

at::Tensor SharedPrefixes::FromAttentionBackward(const at::Tensor& dy) {
  const int64_t width = dy.size(1);
  at::Tensor whole = at::zeros({batch_, length_, width}, dy.options());
  for (const Group& group : groups_) {
    whole[group.rows[0]]
        .narrow(0, 0, group.length)
        .copy_(dy.narrow(0, group.first, group.length));
  }
  CopyRests(dy, whole, /*to_whole=*/true);
  return whole.view({-1, width});
}

void SharedPrefixes::CopyRests(const at::Tensor& computed,
                               const at::Tensor& whole, bool to_whole) const {
  for (const Rest& rest : rests_) {
    const at::Tensor here = computed.narrow(0, rest.first, rest.count);
    const at::Tensor there = whole[rest.row].narrow(0, rest.begin, rest.count);
    if (to_whole) {
      there.copy_(here);
    } else {
      here.copy_(there);
    }
  }
}

}  // namespace capstan::decoder
