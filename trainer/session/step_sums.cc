// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/step_sums.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/where.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <limits>
#include <mutex>
#include <vector>

#include "absl/types/span.h"
#include "trainer/data/data_loader.h"

namespace capstan {
namespace {

// StepSums' fields, in order.
enum Field : int {
  kLossSum,
  kCount,
  kTokens,
  kSquaredSum,
  kFailed,
  kStop,
  kTrained,
  kPadding,
  kSavesWritten,
  kBadSamples,
  kMirrorsPending
};
constexpr int kFields = 11;
static_assert(sizeof(StepSums) == kFields * sizeof(double));

// GpuMemory's numbers behind them, for each rank: a sum in which only that rank
// isn't 0, so that one reduction does for all.
constexpr int kMemoryNumbers = 4;
static_assert(sizeof(GpuMemory) == kMemoryNumbers * sizeof(int64_t));

void PutMemory(const GpuMemory& mine, int rank, absl::Span<double> numbers) {
  std::fill(numbers.begin(), numbers.end(), 0.0);
  int64_t values[kMemoryNumbers];
  std::memcpy(values, &mine, sizeof(values));
  std::copy(std::begin(values), std::end(values),
            numbers.begin() + rank * kMemoryNumbers);
}

GpuMemory LargestMemory(absl::Span<const double> numbers) {
  int64_t largest[kMemoryNumbers] = {};
  for (size_t i = 0; i < numbers.size(); ++i) {
    int64_t& one = largest[i % kMemoryNumbers];
    one = std::max(one, static_cast<int64_t>(numbers[i]));
  }
  GpuMemory memory;
  std::memcpy(&memory, largest, sizeof(memory));
  return memory;
}

// As in torch.nn.utils.clip_grad_norm_.
constexpr double kClipEpsilon = 1e-6;

// A scalar tensor: ATen divides a number by a tensor via the reciprocal, which
// rounds twice.
at::Tensor Scalar(double value, const at::Tensor& like) {
  return at::full({}, value, like.options());
}

// OutcomeOf, on the device.
struct DeviceOutcome {
  at::Tensor scale;  // float32
  at::Tensor finite;
};
DeviceOutcome OutcomeOnDevice(const at::Tensor& sums,
                              const GradientRule& rule) {
  const at::Tensor unscale = Scalar(rule.nominal_targets, sums) /
                             sums[kCount].clamp_min(1.0) /
                             Scalar(rule.loss_scale, sums);
  const at::Tensor norm = sums[kSquaredSum].sqrt() * unscale;
  at::Tensor scale = unscale;
  if (rule.max_norm > 0) {
    scale =
        scale *
        (Scalar(rule.max_norm, sums) / (norm + kClipEpsilon)).clamp_max(1.0);
  }
  const at::Tensor finite = at::isfinite(norm) & at::isfinite(sums[kLossSum]);
  at::Tensor good = finite & (sums[kCount] > 0.0) & (sums[kFailed] == 0.0);
  if (rule.skip_spikes) {
    good = good & (sums[kLossSum] / sums[kCount] <= rule.most_loss);
  }
  const at::Tensor nan = Scalar(std::numeric_limits<double>::quiet_NaN(), sums);
  return {at::where(good, scale, nan).to(at::kFloat), finite};
}

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

void Reduce(ProcessGroup& group, StepSums* sums, GpuMemory* memory,
            const ExactSums* exact) {
  const size_t memory_numbers =
      memory != nullptr ? kMemoryNumbers * group.size() : 0;
  const size_t exact_numbers = exact != nullptr ? ExactSum::kNumbers : 0;
  std::vector<double> values(kFields + memory_numbers + 2 * exact_numbers);
  std::memcpy(values.data(), sums, sizeof(*sums));
  const absl::Span<double> memories =
      absl::MakeSpan(values).subspan(kFields, memory_numbers);
  const absl::Span<double> losses =
      absl::MakeSpan(values).subspan(kFields + memory_numbers, exact_numbers);
  const absl::Span<double> squares = absl::MakeSpan(values).subspan(
      kFields + memory_numbers + exact_numbers, exact_numbers);
  if (memory != nullptr) PutMemory(*memory, group.rank(), memories);
  if (exact != nullptr) {
    exact->loss.Save(losses);
    exact->gradient_squared.Save(squares);
  }
  group.AllReduceHost(absl::MakeSpan(values));
  std::memcpy(static_cast<void*>(sums), values.data(), sizeof(*sums));
  if (memory != nullptr) *memory = LargestMemory(memories);
  if (exact != nullptr) {
    sums->loss_sum = ExactSum::Load(losses).Value();
    sums->gradient_squared_sum = ExactSum::Load(squares).Value();
  }
}

StepOutcome OutcomeOf(const StepSums& sums, const GradientRule& rule) {
  StepOutcome outcome;
  const double unscale =
      rule.nominal_targets / std::max(sums.count, 1.0) / rule.loss_scale;
  outcome.grad_norm = std::sqrt(sums.gradient_squared_sum) * unscale;
  outcome.finite =
      std::isfinite(outcome.grad_norm) && std::isfinite(sums.loss_sum);
  outcome.spike = outcome.finite && sums.count > 0 &&
                  sums.loss_sum / sums.count > rule.most_loss;
  outcome.skipped =
      !outcome.finite || sums.count == 0 || (outcome.spike && rule.skip_spikes);
  outcome.gradient_scale = unscale;
  if (rule.max_norm > 0) {
    outcome.gradient_scale *=
        std::min(1.0, rule.max_norm / (outcome.grad_norm + kClipEpsilon));
  }
  return outcome;
}

bool DefersSums(at::Device device) { return device.is_cuda(); }

DeferredSums::DeferredSums(at::Device device, int ranks, int metrics)
    : ranks_(ranks), metrics_(metrics) {
  const auto doubles = at::TensorOptions().dtype(at::kDouble);
  const int64_t size = kFields + ranks * kMemoryNumbers + metrics;
  host_ = at::empty({size}, doubles.pinned_memory(device.is_cuda()));
  sums_ = at::empty({size}, doubles.device(device));
  if (!device.is_cpu()) read_.emplace(device.type());
}

void DeferredSums::Reduce(const StepSums& mine, const at::Tensor& loss_sum,
                          const at::Tensor& gradient_squared_sum,
                          const GradientRule& rule, ProcessGroup& group,
                          const at::Tensor& metrics) {
  pending_ = true;
  host_.zero_();
  double* const host = host_.mutable_data_ptr<double>();
  std::memcpy(host, &mine, sizeof(mine));
  if (ranks_ > 0) {
    PutMemory(memory_, group.rank(),
              {host + kFields, static_cast<size_t>(ranks_ * kMemoryNumbers)});
  }
  sums_.copy_(host_, /*non_blocking=*/true);
  if (loss_sum.defined()) sums_[kLossSum].copy_(loss_sum);
  if (gradient_squared_sum.defined()) {
    sums_[kSquaredSum].copy_(gradient_squared_sum, /*non_blocking=*/true);
  }
  if (metrics.defined()) {
    sums_
        .narrow(0, kFields + ranks_ * kMemoryNumbers,
                static_cast<int64_t>(metrics_.size()))
        .copy_(metrics.reshape({-1}));
  }
  group.AllReduce(sums_)->Wait();
  const DeviceOutcome outcome = OutcomeOnDevice(sums_, rule);
  scale_ = outcome.scale;
  if (rule.next_if_finite != rule.next_if_not) {
    next_loss_scale_ =
        at::where(outcome.finite, Scalar(rule.next_if_finite, sums_),
                  Scalar(rule.next_if_not, sums_));
  } else {
    next_loss_scale_ = at::Tensor();
  }
  host_.copy_(sums_, /*non_blocking=*/true);
  if (read_.has_value()) {
    const c10::impl::VirtualGuardImpl guard(sums_.device().type());
    read_->record(guard.getStream(sums_.device()));
  }
}

StepSums DeferredSums::Read() {
  pending_ = false;
  // It is a step old, and the device has the next step's micro-batches to go on
  // with: a pause isn't missed, and the loader's thread needs the core.
  if (read_.has_value()) AwaitEvent(*read_);
  StepSums sums;
  const double* const host = host_.const_data_ptr<double>();
  std::memcpy(static_cast<void*>(&sums), host, sizeof(sums));
  largest_memory_ = LargestMemory(
      {host + kFields, static_cast<size_t>(ranks_ * kMemoryNumbers)});
  std::copy_n(host + kFields + ranks_ * kMemoryNumbers, metrics_.size(),
              metrics_.begin());
  return sums;
}

}  // namespace capstan
