// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/evaluate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "cluster/launch/launcher.h"
#include "plugins/sdk/memory.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/step_sums.h"
#include "trainer/session/whose_code.h"

// After LibTorch's headers, which define the same macros.
#include <glog/logging.h>

namespace capstan {
namespace {

// Indices into an evaluation's sums, followed by the objective's.
enum { kLoss, kCount, kFirstMetric };

// Without rounding: the same bits on any number of ranks.
void AddLoss(const LossSum& loss, absl::Span<ExactSum> sums) {
  sums[kLoss].Add(loss.sum.item<double>());
  sums[kCount].Add(static_cast<double>(loss.count));
  if (!loss.metrics.defined()) return;
  const at::Tensor metrics =
      loss.metrics.to(at::kCPU, at::kDouble).contiguous();
  const double* values = metrics.const_data_ptr<double>();
  for (size_t i = kFirstMetric; i < sums.size(); ++i) {
    sums[i].Add(values[i - kFirstMetric]);
  }
}

class Evaluation {
 public:
  explicit Evaluation(const EvaluationRequest& request)
      : request_(request),
        objective_(*request.objective),
        group_(*request.group),
        lockstep_poll_(request.group),
        measure_poll_(request.strategy != nullptr &&
                              request.strategy->collective_forward()
                          ? request.group
                          : nullptr) {
    CHECK_EQ(request.mesh.size(), group_.size());
    info_.seed = request.seed;
    info_.thorough = request.thorough;
  }

  absl::StatusOr<EvaluationResult> Run() {
    CAPSTAN_RETURN_IF_ERROR(SumTotals());
    const std::vector<MetricTags> tags = objective_.metrics();
    std::vector<ExactSum> sums(kFirstMetric + 2 * tags.size());
    CAPSTAN_RETURN_IF_ERROR(
        EndPart(SumLosses(absl::MakeSpan(sums)), "evaluate"));
    AllReduce(group_, absl::MakeSpan(sums));
    EvaluationResult result;
    result.loss_sum = sums[kLoss].Value();
    result.count = sums[kCount].Value();
    CAPSTAN_RETURN_IF_ERROR(Measure(&result));
    for (size_t i = 0; i < tags.size(); ++i) {
      const ExactSum* const pair = &sums[kFirstMetric + 2 * i];
      const double count = pair[1].Value();
      if (count == 0 || tags[i].eval.empty()) continue;
      result.tagged.emplace_back(tags[i].eval, pair[0].Value() / count);
    }
    return result;
  }

 private:
  absl::Status EndPart(const absl::Status& mine, const char* what) {
    if (mine.ok() || absl::IsCancelled(mine) || IsLostPeer(mine)) {
      return AgreeOrStop(group_, mine, what);
    }
    const absl::Status error = Annotate(mine, "evaluation");
    return SharesRowsAlone() ? error : AgreeOrStop(group_, error, what);
  }

  // Whether ranks that share this one's rows may wait for it within a forward,
  // where only the end of its process reaches them.
  bool SharesRowsAlone() const {
    return request_.mesh.sequence > 1 && PhaseGroupOf(group_) == nullptr;
  }

  // Whose batches this rank computes, of request_.mesh.data; and whether it
  // counts them.
  int64_t rank() const {
    return request_.mesh.index(MeshAxis::kData, group_.rank());
  }
  bool counts() const {
    return request_.mesh.index(MeshAxis::kSequence, group_.rank()) == 0;
  }

  int64_t Batches() const {
    const int64_t micro = request_.micro_batch_size;
    const int64_t batches = (request_.data->size() + micro - 1) / micro;
    return request_.max_batches > 0 ? std::min(batches, request_.max_batches)
                                    : batches;
  }

  absl::StatusOr<Batch> BatchAt(int64_t index) const {
    const int64_t begin = index * request_.micro_batch_size;
    std::vector<int64_t> samples(
        std::min(request_.micro_batch_size, request_.data->size() - begin));
    std::iota(samples.begin(), samples.end(), begin);
    const DatasetReader* const forgiving = request_.forgiving;
    const WhoseCode code(request_.data_name, "Read");
    return ReadBatch(forgiving != nullptr ? *forgiving : *request_.data,
                     samples, group_.device());
  }

  // Sums StepInfo::totals over all batches.
  absl::Status SumTotals() {
    if (objective_.step_totals() == 0) return absl::OkStatus();
    std::vector<ExactSum> sums(objective_.step_totals());
    // Has no collectives: each rank checks its own signal.
    StopPoll poll(nullptr);
    const auto read = [&]() -> absl::Status {
      const int64_t batches = Batches();
      for (int64_t i = rank(); i < batches && counts();
           i += request_.mesh.data) {
        if (poll.Ask()) return absl::CancelledError("stopped");
        CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, BatchAt(i));
        AddStepTotals(objective_, batch, info_, absl::MakeSpan(sums));
      }
      return absl::OkStatus();
    };
    CAPSTAN_RETURN_IF_ERROR(EndPart(CatchAll(read), "evaluate"));
    AllReduce(group_, absl::MakeSpan(sums));
    info_.totals.clear();
    for (const ExactSum& sum : sums) info_.totals.push_back(sum.Value());
    return absl::OkStatus();
  }

  // Adds up this rank's part.
  absl::Status SumLosses(absl::Span<ExactSum> sums) {
    at::NoGradGuard no_grad;
    // All ranks run the same number of forwards, as these may contain
    // collectives; results beyond the last batch are discarded.
    const int64_t ranks = request_.mesh.data;
    const int64_t rounds = (Batches() + ranks - 1) / ranks;
    absl::Status status;
    for (int64_t round = 0; round < rounds; ++round) {
      try {
        if (lockstep_poll_.Ask()) {
          return status.ok() ? absl::CancelledError("stopped") : status;
        }
        // Even after an error this rank must take part in the collectives.
        if (status.ok()) {
          status = AddBatch(round * ranks + rank(), sums);
        }
      } catch (...) {
        status.Update(CurrentExceptionToStatus());
      }
      // A lost connection ends the loop, or what ends the others' as well.
      if (IsLostPeer(status)) return status;
      if (!status.ok() &&
          (SharesRowsAlone() || PhaseGroupOf(group_) != nullptr)) {
        return status;
      }
      try {
        FinishForward();
      } catch (...) {
        return status.ok() ? CurrentExceptionToStatus() : status;
      }
      request_.progress((round + 1.0) / static_cast<double>(rounds));
    }
    return status;
  }

  absl::Status AddBatch(int64_t index, absl::Span<ExactSum> sums) {
    const int64_t last = Batches() - 1;
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, BatchAt(std::min(index, last)));
    const WhoseCode code(request_.objective_name, "Compute");
    const MemoryScope scope(MemoryCategory::kActivations);
    LossSum loss =
        objective_.Compute(*request_.model, batch, info_, *request_.runner);
    if (!counts()) {
      loss.count = 0;
      if (objective_.has_whole_sums()) loss.sum = at::zeros_like(loss.sum);
    }
    if (index <= last) AddLoss(loss, sums);
    return absl::OkStatus();
  }

  void FinishForward() {
    if (request_.strategy != nullptr) request_.strategy->FinishForward();
  }

  // What follows from the loss, and what the objective measures.
  absl::Status Measure(EvaluationResult* result) {
    MeasureInfo info;
    info.seed = request_.seed;
    info.rank = group_.rank();
    info.world_size = group_.size();
    info.last = request_.last;
    info.progress = request_.measuring;
    info.stop = [this] { return measure_poll_.Ask(); };
    info.all_done = [this](bool done) {
      double others[] = {done ? 0.0 : 1.0, StopRequested() != 0 ? 1.0 : 0.0};
      group_.AllReduceHost(absl::MakeSpan(others));
      return others[0] == 0.0 || others[1] > 0.0;
    };
    absl::StatusOr<std::vector<double>> sums;
    try {
      at::NoGradGuard no_grad;
      if (result->count > 0) AddDerived(result);
      const WhoseCode code(request_.objective_name, "Measure");
      sums = objective_.Measure(*request_.model, *request_.data, info,
                                *request_.runner);
      FinishForward();
    } catch (...) {
      sums = CurrentExceptionToStatus();
    }
    // The others may be in the collectives of a forward.
    const bool collective =
        objective_.has_rollouts() || (request_.strategy != nullptr &&
                                      request_.strategy->collective_forward());
    if (!sums.ok() && !absl::IsCancelled(sums.status()) && collective) {
      return AgreeAfterCollectives(group_, sums.status(), "measure");
    }
    CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(group_, sums.status(), "measure"));
    if (sums->empty()) return absl::OkStatus();
    group_.AllReduceHost(absl::MakeSpan(*sums));
    result->measurement = objective_.Summarize(*sums, info);
    return absl::OkStatus();
  }

  void AddDerived(EvaluationResult* result) const {
    const WhoseCode code(request_.objective_name, "DerivedFromLoss");
    for (const auto& [name, value] :
         objective_.DerivedFromLoss(result->loss_sum / result->count)) {
      result->tagged.emplace_back(absl::StrCat("eval/", name), value);
    }
  }

  const EvaluationRequest& request_;
  Objective& objective_;
  ProcessGroup& group_;
  StepInfo info_;
  StopPoll lockstep_poll_;  // for SumLosses, where no rank skips a round
  StopPoll measure_poll_;
};

}  // namespace

void AddStepTotals(const Objective& objective, const Batch& batch,
                   const StepInfo& info, absl::Span<ExactSum> sums) {
  const std::vector<double> totals = objective.StepTotals(batch, info);
  for (size_t i = 0; i < sums.size(); ++i) sums[i].Add(totals.at(i));
}

absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request) {
  return Evaluation(request).Run();
}

}  // namespace capstan
