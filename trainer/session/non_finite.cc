// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/non_finite.h"

#include <ATen/ops/aminmax.h>
#include <ATen/ops/isfinite.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "trainer/checkpoint/state_kinds.h"
#include "trainer/session/forgotten_rows.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// What one rank knows of a step that isn't finite.
struct RankFinding {
  int64_t losses = 0;       // micro-batches whose loss isn't finite
  int64_t micro_batch = 0;  // the first of them
  double loss = 0.0;        // its loss
  int64_t parameter = -1;   // the last with a non-finite gradient; -1: none
};

std::string SamplesText(const std::vector<int64_t>& samples) {
  constexpr size_t kMostSamples = 16;
  const size_t shown = std::min(samples.size(), kMostSamples);
  const size_t more = samples.size() - shown;
  return absl::StrCat(
      samples.size() == 1 ? "sample " : "samples ",
      absl::StrJoin(samples.begin(), samples.begin() + shown, ", "),
      more > 0 ? absl::StrCat(" and ", more, " more") : "", " of train_data");
}

// Returns the parameters with a part in `owned` of which `is_bad` is true. Asks
// for whole slices first: most are good.
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

RankFinding FindingOf(const StepInFlight& step, Strategy& strategy) {
  RankFinding finding;
  for (size_t i = 0; i < step.losses.size(); ++i) {
    const double loss = step.losses[i].item<double>();
    if (std::isfinite(loss) || finding.losses++ > 0) continue;
    finding.micro_batch = static_cast<int64_t>(i);
    finding.loss = loss;
  }
  const std::vector<int> bad = ParametersWith(
      strategy.OptimizerShards(),
      strategy.local_steps() ? WholeShards(strategy.OptimizerShards())
                             : strategy.OwnedSlices(),
      [](const OptimizerShard& shard, int64_t begin, int64_t end) {
        return !at::isfinite(shard.gradient.narrow(0, begin, end - begin))
                    .all()
                    .item<bool>();
      });
  // Backward computes the last one first.
  if (!bad.empty()) {
    finding.parameter = *std::max_element(bad.begin(), bad.end());
  }
  return finding;
}

}  // namespace

struct NonFiniteSteps::Cause {
  std::string text;
  // Whether gradients aren't finite although all losses are, so that it is
  // unknown which rank's micro-batch they came from.
  bool gradient_alone = false;
};

struct NonFiniteSteps::MicroBatch {
  int64_t position = 0;  // of its first sample in the run's sequence
  std::vector<int64_t> samples;
  // "rank 1's micro-batch 1 of 2 (samples 5, 9 of train_data)".
  std::string text;
};

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

absl::Status NonFiniteSteps::Explain(const StepInFlight& step, bool late) {
  constexpr int kMostExplanations = 20;
  if (explained_ || explanations_ == kMostExplanations ||
      (!session_.scaler.at_minimum() && std::isfinite(step.sums.loss_sum))) {
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Cause cause, FindCause(step, late));
  std::string why = cause.text;
  if (cause.gradient_alone && explanations_ == 0) {
    if (late) {
      // The next step's gradients are still needed.
      late_origin_ = {session_.state.step, step.position};
    } else {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string origin,
                               FindOrigin(step.position));
      absl::StrAppend(&why, "; ", origin);
    }
  }
  explained_ = true;
  ++explanations_;
  divergence_.set_cause(
      absl::StrCat("in step ", session_.state.step, " ", why));
  session_.Note(
      absl::StrCat("step ", session_.state.step, " makes no update: ", why,
                   explanations_ == kMostExplanations
                       ? "; further such steps aren't named"
                       : ""),
      kSkippedEvent);
  return absl::OkStatus();
}

// Returns the same on all ranks.
absl::StatusOr<NonFiniteSteps::Cause> NonFiniteSteps::FindCause(
    const StepInFlight& step, bool late) const {
  ProcessGroup& group = *session_.group;
  std::vector<RankFinding> mine(1), all;
  // A rank that can't look has found nothing: this must not end a run that
  // only skips a step.
  CatchAll([&] {
    mine[0] = FindingOf(step, *session_.parts.strategy);
    return absl::OkStatus();
  }).IgnoreError();
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    all = AllGatherHost(group, mine);
    return absl::OkStatus();
  }));

  int first = -1;
  int64_t losses = 0;
  int64_t parameter = -1;
  for (int rank = 0; rank < group.size(); ++rank) {
    const RankFinding& found = all[rank];
    parameter = std::max(parameter, found.parameter);
    // Of ranks that share micro-batches, one counts.
    if (session_.mesh().index(MeshAxis::kSequence, rank) == 0) {
      losses += found.losses;
    }
    if (found.losses == 0) continue;
    if (first < 0 || found.micro_batch < all[first].micro_batch) first = rank;
  }
  Cause cause;
  if (first >= 0) {
    const double loss = all[first].loss;
    cause.text = absl::StrCat(
        "the loss is ",
        std::isnan(loss) ? "nan"
        : loss > 0       ? "inf"
                         : "-inf",
        " on ", MicroBatchOf(step.position, first, all[first].micro_batch).text,
        losses > 1 ? absl::StrCat(", the first of ", losses, " such") : "");
    return cause;
  }
  cause.gradient_alone = parameter >= 0 || late;
  if (parameter < 0) {
    cause.text = late ? "all ranks' losses are finite, but a gradient wasn't, "
                        "which is gone by now, as sums are read a step later"
                      : "no loss or gradient alone, but their sum";
    return cause;
  }
  cause.text = absl::StrCat(
      "all ranks' losses are finite, but the gradient of '",
      session_.parts.model->parameters()[parameter].name, "' isn't",
      late ? " in the step after it, whose sums are read later" : "",
      ", the first in backward");
  return cause;
}

NonFiniteSteps::MicroBatch NonFiniteSteps::MicroBatchOf(int64_t position,
                                                        int rank,
                                                        int64_t index) const {
  const BatchPlan& batch = session_.job.batch;
  MicroBatch found;
  found.position =
      position +
      batch.Shares(session_.mesh())
          .FirstSample(session_.mesh().index(MeshAxis::kData, rank), index);
  found.samples.resize(batch.micro_batch_size);
  SampleSequence(order_).At(found.position, absl::MakeSpan(found.samples));
  found.text =
      absl::StrCat("rank ", rank, "'s micro-batch ", index + 1, " of ",
                   batch.accumulation, " (", SamplesText(found.samples), ")");
  return found;
}

// Tries the step's micro-batches one at a time, all ranks the same one, until
// one gives a gradient that isn't finite. Only once in a run and in up to
// kMostTries micro-steps, after a step that is skipped anyway.
absl::StatusOr<std::string> NonFiniteSteps::FindOrigin(int64_t position) {
  constexpr int64_t kMostTries = 128;
  const int world = session_.mesh().data;
  const int64_t tries =
      session_.job.batch.Shares(session_.mesh()).micro_batches();
  std::string origin =
      "tried again one at a time, all micro-batches give finite ones";
  if (tries > kMostTries || session_.parts.objective->has_rollouts()) {
    return std::string("not tried again");
  }
  for (int64_t i = 0; i < tries; ++i) {
    const MicroBatch micro_batch = MicroBatchOf(
        position, static_cast<int>(i % world) * session_.mesh().sequence,
        i / world);
    bool completed = false;
    const absl::Status mine = Try(micro_batch, &completed);
    if (IsLostPeer(mine) || !completed) return mine;
    double sums[] = {mine.ok() ? 0.0 : 1.0, 0.0};
    CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
      sums[1] = session_.parts.strategy->GradientSquaredSum().item<double>();
      session_.group->AllReduceHost(absl::MakeSpan(sums));
      return absl::OkStatus();
    }));
    if (sums[0] > 0) origin = "trying it again failed";
    if (sums[0] == 0 && !std::isfinite(sums[1])) {
      origin = absl::StrCat("it comes from ", micro_batch.text);
    }
    if (sums[0] > 0 || !std::isfinite(sums[1])) break;
  }
  session_.phase = "";
  return origin;
}

absl::Status NonFiniteSteps::FindLateOrigin() {
  if (!late_origin_.has_value()) return absl::OkStatus();
  const auto [step, position] = *late_origin_;
  late_origin_.reset();
  CAPSTAN_ASSIGN_OR_RETURN(const std::string origin, FindOrigin(position));
  session_.Note(absl::StrCat("the gradient of step ", step,
                             " that wasn't finite: ", origin));
  return absl::OkStatus();
}

absl::Status NonFiniteSteps::Try(const MicroBatch& micro_batch,
                                 bool* completed) {
  std::vector<int64_t> samples = micro_batch.samples;
  std::vector<int64_t> places(samples.size());
  std::iota(places.begin(), places.end(), micro_batch.position);
  RemoveForgotten(ForgottenRows(session_.config.train()),
                  session_.train_reader(), &samples, &places);
  const auto read = [&]() -> absl::StatusOr<Batch> {
    const WhoseCode code(session_.plugins.train_data, "Read");
    CAPSTAN_ASSIGN_OR_RETURN(
        Batch batch, ReadBatch(session_.train_reader(), samples, at::kCPU));
    // As the loader gave it.
    std::copy(places.begin(), places.end(),
              batch.at(kSamplePosition).mutable_data_ptr<int64_t>());
    for (auto& [name, tensor] : batch) {
      tensor = tensor.to(session_.group->device());
    }
    return batch;
  };
  return micro_steps_.Backpropagate(session_.state.step, read, completed);
}

}  // namespace capstan
