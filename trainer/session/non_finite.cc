// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/non_finite.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/comm/agree.h"

namespace capstan {
namespace {

constexpr size_t kMostSamples = 16;

// What one rank knows, and its place among the ranks' numbers.
enum { kMicroBatch, kLoss, kLosses, kParameter, kFields };

std::string SamplesText(const std::vector<int64_t>& samples) {
  const size_t shown = std::min(samples.size(), kMostSamples);
  const size_t more = samples.size() - shown;
  return absl::StrCat(
      samples.size() == 1 ? "sample " : "samples ",
      absl::StrJoin(samples.begin(), samples.begin() + shown, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", " of train_data");
}

bool AllFinite(const at::Tensor& values) {
  return at::isfinite(values).all().item<bool>();
}

// The parameters with a part in `owned` of which `is_bad` is true. Asks for
// whole slices first: most are good.
std::vector<int> ParametersWith(
    absl::Span<const OptimizerShard> shards,
    const std::vector<OwnedSlice>& owned,
    const std::function<bool(const OptimizerShard& shard, int64_t begin,
                             int64_t end)>& is_bad) {
  std::vector<int> bad;
  for (const OwnedSlice& slice : owned) {
    const OptimizerShard& shard = shards[slice.shard];
    if (slice.begin >= slice.end || !is_bad(shard, slice.begin, slice.end)) {
      continue;
    }
    for (const ParameterRange& range : shard.ranges) {
      const int64_t low = std::max(slice.begin, range.offset);
      const int64_t high = std::min(slice.end, range.offset + range.length);
      if (low < high && is_bad(shard, low, high))
        bad.push_back(range.parameter);
    }
  }
  return bad;
}

// The number of micro-batches with such a loss, and the first.
void LookAtLosses(const std::vector<at::Tensor>& losses, double* found) {
  for (size_t i = 0; i < losses.size(); ++i) {
    const double loss = losses[i].item<double>();
    if (std::isfinite(loss)) continue;
    if (found[kLosses]++ > 0) continue;
    found[kMicroBatch] = static_cast<double>(i);
    // Numbers that a sum over the ranks keeps.
    found[kLoss] = std::isnan(loss) ? 0.0 : std::copysign(1.0, loss);
  }
}

const char* LossText(double kind) {
  if (kind == 0.0) return "nan";
  return kind > 0 ? "inf" : "-inf";
}

}  // namespace

int LastNonFiniteGradient(absl::Span<const OptimizerShard> shards,
                          const std::vector<OwnedSlice>& owned) {
  const std::vector<int> bad = ParametersWith(
      shards, owned,
      [](const OptimizerShard& shard, int64_t begin, int64_t end) {
        return !AllFinite(shard.gradient.narrow(0, begin, end - begin));
      });
  return bad.empty() ? -1 : *std::max_element(bad.begin(), bad.end());
}

int FirstBeyond(absl::Span<const OptimizerShard> shards,
                const std::vector<OwnedSlice>& owned, double most) {
  const std::vector<int> bad = ParametersWith(
      shards, owned,
      [most](const OptimizerShard& shard, int64_t begin, int64_t end) {
        const auto [low, high] =
            at::aminmax(shard.master.narrow(0, begin, end - begin));
        return low.item<double>() < -most || high.item<double>() > most;
      });
  return bad.empty() ? -1 : *std::min_element(bad.begin(), bad.end());
}

absl::StatusOr<NonFiniteCause> ExplainNonFinite(const NonFiniteStep& step,
                                                const DataOrder& order,
                                                Session* session) {
  ProcessGroup& group = *session->group;
  Strategy& strategy = *session->parts.strategy;
  std::vector<double> all(kFields * group.size(), 0.0);
  double* const mine = &all[kFields * group.rank()];
  // A rank that can't look has found nothing: this must not end a run that
  // only skips a step.
  (void)CatchAll([&] {
    LookAtLosses(*step.losses, mine);
    mine[kParameter] = 1 + LastNonFiniteGradient(strategy.OptimizerShards(),
                                                 strategy.OwnedSlices());
    return absl::OkStatus();
  });
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    group.AllReduceHost(absl::MakeSpan(all));
    return absl::OkStatus();
  }));

  int first = -1;
  double losses = 0.0;
  int parameter = -1;
  for (int rank = 0; rank < group.size(); ++rank) {
    const double* const found = &all[kFields * rank];
    parameter = std::max(parameter, static_cast<int>(found[kParameter]) - 1);
    losses += found[kLosses];
    if (found[kLosses] == 0) continue;
    if (first < 0 || found[kMicroBatch] < all[kFields * first + kMicroBatch]) {
      first = rank;
    }
  }
  NonFiniteCause cause;
  if (first >= 0) {
    const double* const found = &all[kFields * first];
    cause.text = absl::StrCat(
        "the loss is ", LossText(found[kLoss]), " on ",
        PlaceOf(*session, order, step.position, first,
                static_cast<int64_t>(found[kMicroBatch]))
            .text,
        losses > 1 ? absl::StrCat(", the first of ", losses, " such") : "");
    return cause;
  }
  cause.gradient_alone = parameter >= 0 || step.late;
  if (parameter < 0) {
    cause.text = step.late
                     ? "all ranks' losses are finite, but a gradient wasn't, "
                       "which is gone by now, as sums are read a step later"
                     : "no loss or gradient alone, but their sum";
    return cause;
  }
  cause.text = absl::StrCat(
      "all ranks' losses are finite, but the gradient of '",
      session->parts.model->parameters()[parameter].name, "' isn't",
      step.late ? " in the step after it, whose sums are read later" : "",
      ", the first in backward");
  return cause;
}

MicroBatchPlace PlaceOf(const Session& session, const DataOrder& order,
                        int64_t position, int rank, int64_t index) {
  const BatchPlan& batch = session.job.batch;
  MicroBatchPlace place;
  place.position =
      position + MicroBatchIndex(batch.order, rank, session.group->size(),
                                 index, batch.accumulation) *
                     batch.micro_batch_size;
  place.samples.resize(batch.micro_batch_size);
  SampleSequence(order).At(place.position, absl::MakeSpan(place.samples));
  place.text =
      absl::StrCat("rank ", rank, "'s micro-batch ", index + 1, " of ",
                   batch.accumulation, " (", SamplesText(place.samples), ")");
  return place;
}

}  // namespace capstan
