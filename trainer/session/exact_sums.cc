// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/exact_sums.h"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace capstan {
namespace {

constexpr int64_t kBlock = 32;
// Elements that are worth a thread's turn.
constexpr int64_t kGrain = 1 << 16;

// The sum of the squares of x [n], n <= kBlock. Products are exact, so that it
// doesn't matter whether a processor rounds them.
double SquaresOfBlock(const float* x, int64_t n) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  float block[kBlock] = {};
  if (n < kBlock) {
    std::copy_n(x, n, block);
    x = block;
  }
  for (int i = 0; i < kBlock; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const double value = x[i + l];
      lanes[l] += value * value;
    }
  }
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  }
  return lanes[0];
}

// Of x [n], whose first element is number `first` of its parameter.
void AddSquares(const float* x, int64_t n, int64_t first, ExactSum* sum) {
  for (int64_t i = 0; i < n;) {
    const int64_t length = std::min(kBlock - (first + i) % kBlock, n - i);
    sum->Add(SquaresOfBlock(x + i, length));
    i += length;
  }
}

}  // namespace

ExactSum GradientSquares(absl::Span<const OptimizerShard> shards,
                         const std::vector<OwnedSlice>& owned) {
  ExactSum sum;
  std::mutex mutex;
  for (const OwnedSlice& slice : owned) {
    const OptimizerShard& shard = shards[slice.shard];
    for (const ParameterRange& range : shard.ranges) {
      const int64_t begin = std::max(slice.begin, range.offset);
      const int64_t end = std::min(slice.end, range.offset + range.length);
      if (begin >= end) continue;
      const at::Tensor gradient =
          shard.gradient.narrow(0, begin, end - begin).to(at::kFloat);
      const float* const x = gradient.const_data_ptr<float>();
      const int64_t first = range.begin + begin - range.offset;
      at::parallel_for(0, end - begin, kGrain, [&](int64_t from, int64_t to) {
        // Whole blocks, whatever the number of threads.
        const auto cut = [&](int64_t at) {
          return at == 0 || at == end - begin
                     ? at
                     : std::max<int64_t>(
                           0, (first + at) / kBlock * kBlock - first);
        };
        ExactSum part;
        AddSquares(x + cut(from), cut(to) - cut(from), first + cut(from),
                   &part);
        const std::lock_guard<std::mutex> lock(mutex);
        sum.Add(part);
      });
    }
  }
  return sum;
}

void AllReduce(ProcessGroup& group, absl::Span<ExactSum> sums) {
  std::vector<double> numbers(sums.size() * ExactSum::kNumbers);
  const auto numbers_of = [&](size_t i) {
    return absl::MakeSpan(numbers).subspan(i * ExactSum::kNumbers,
                                           ExactSum::kNumbers);
  };
  for (size_t i = 0; i < sums.size(); ++i) sums[i].Save(numbers_of(i));
  group.AllReduceHost(absl::MakeSpan(numbers));
  for (size_t i = 0; i < sums.size(); ++i) {
    sums[i] = ExactSum::Load(numbers_of(i));
  }
}

}  // namespace capstan
