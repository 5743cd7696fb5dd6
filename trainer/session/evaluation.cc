// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/evaluation.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/data/data_loader.h"
#include "trainer/process_group/agree.h"

namespace capstan {
namespace {

// Indices into an evaluation's sums, followed by the objective's.
enum { kLoss, kCount, kFirstMetric };

void AddLoss(const LossSum& loss, absl::Span<double> sums) {
  sums[kLoss] += loss.sum.item<double>();
  sums[kCount] += static_cast<double>(loss.count);
  if (!loss.metrics.defined()) return;
  const at::Tensor metrics =
      loss.metrics.to(at::kCPU, at::kDouble).contiguous();
  const double* values = metrics.const_data_ptr<double>();
  for (size_t i = kFirstMetric; i < sums.size(); ++i) {
    sums[i] += values[i - kFirstMetric];
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
    info_.seed = request.seed;
    info_.thorough = request.thorough;
  }

  absl::StatusOr<EvaluationResult> Run() {
    CAPSTAN_RETURN_IF_ERROR(SumTotals());
    const std::vector<MetricTags> tags = objective_.metrics();
    std::vector<double> sums(kFirstMetric + 2 * tags.size(), 0.0);
    CAPSTAN_RETURN_IF_ERROR(
        EndPart(SumLosses(absl::MakeSpan(sums)), "evaluate"));
    group_.AllReduceHost(absl::MakeSpan(sums));
    EvaluationResult result;
    result.loss_sum = sums[kLoss];
    result.count = sums[kCount];
    for (size_t i = 0; i < tags.size(); ++i) {
      const double* pair = &sums[kFirstMetric + 2 * i];
      if (pair[1] == 0) continue;
      result.tagged.emplace_back(tags[i].eval, pair[0] / pair[1]);
    }
    CAPSTAN_RETURN_IF_ERROR(Measure(&result));
    return result;
  }

 private:
  absl::Status EndPart(const absl::Status& mine, const char* what) {
    if (mine.ok() || absl::IsCancelled(mine) || absl::IsUnavailable(mine)) {
      return AgreeOrStop(group_, mine, what);
    }
    return AgreeOrStop(group_, Annotate(mine, "evaluation"), what);
  }

  int64_t Batches() const {
    const int64_t micro = request_.micro_batch_size;
    const int64_t batches = (request_.data->size() + micro - 1) / micro;
    return request_.max_batches > 0 ? std::min(batches, request_.max_batches)
                                    : batches;
  }

  absl::StatusOr<Batch> ReadBatch(int64_t index) const {
    const int64_t begin = index * request_.micro_batch_size;
    std::vector<int64_t> samples(
        std::min(request_.micro_batch_size, request_.data->size() - begin));
    std::iota(samples.begin(), samples.end(), begin);
    Batch batch;
    CAPSTAN_RETURN_IF_ERROR(request_.data->Read(samples, &batch));
    SetSamplePositions(samples, &batch);
    for (auto& [name, tensor] : batch) tensor = tensor.to(group_.device());
    return batch;
  }

  // Sums StepInfo::totals over all batches.
  absl::Status SumTotals() {
    if (objective_.step_totals() == 0) return absl::OkStatus();
    std::vector<double> sums(objective_.step_totals(), 0.0);
    // Has no collectives: each rank checks its own signal.
    StopPoll poll(nullptr);
    const auto read = [&]() -> absl::Status {
      const int64_t batches = Batches();
      for (int64_t i = group_.rank(); i < batches; i += group_.size()) {
        if (poll.Ask()) return absl::CancelledError("stopped");
        CAPSTAN_ASSIGN_OR_RETURN(const Batch batch, ReadBatch(i));
        AddStepTotals(objective_, batch, info_, &sums);
      }
      return absl::OkStatus();
    };
    CAPSTAN_RETURN_IF_ERROR(EndPart(CatchAll(read), "evaluate"));
    group_.AllReduceHost(absl::MakeSpan(sums));
    info_.totals = std::move(sums);
    return absl::OkStatus();
  }

  // Adds up this rank's part.
  absl::Status SumLosses(absl::Span<double> sums) {
    at::NoGradGuard no_grad;
    // All ranks run the same number of forwards, as these may contain
    // collectives; results beyond the last batch are discarded.
    const int64_t world = group_.size();
    const int64_t rounds = (Batches() + world - 1) / world;
    absl::Status status;
    for (int64_t round = 0; round < rounds; ++round) {
      try {
        if (lockstep_poll_.Ask()) {
          return status.ok() ? absl::CancelledError("stopped") : status;
        }
        // Even after an error this rank must take part in the collectives.
        if (status.ok()) {
          status = AddBatch(round * world + group_.rank(), sums);
        }
      } catch (...) {
        status.Update(CurrentExceptionToStatus());
      }
      // A lost connection ends the loop.
      if (absl::IsUnavailable(status)) return status;
      try {
        FinishForward();
      } catch (...) {
        return status.ok() ? CurrentExceptionToStatus() : status;
      }
      request_.progress((round + 1.0) / static_cast<double>(rounds));
    }
    return status;
  }

  absl::Status AddBatch(int64_t index, absl::Span<double> sums) {
    const int64_t last = Batches() - 1;
    CAPSTAN_ASSIGN_OR_RETURN(const Batch batch,
                             ReadBatch(std::min(index, last)));
    const LossSum loss =
        objective_.Compute(*request_.model, batch, info_, *request_.runner);
    if (index <= last) AddLoss(loss, sums);
    return absl::OkStatus();
  }

  void FinishForward() {
    if (request_.strategy != nullptr) request_.strategy->FinishForward();
  }

  absl::Status Measure(EvaluationResult* result) {
    MeasureInfo info;
    info.seed = request_.seed;
    info.rank = group_.rank();
    info.world_size = group_.size();
    info.last = request_.last;
    info.progress = request_.measuring;
    info.stop = [this] { return measure_poll_.Ask(); };
    absl::StatusOr<std::vector<double>> sums;
    try {
      at::NoGradGuard no_grad;
      sums = objective_.Measure(*request_.model, *request_.data, info,
                                *request_.runner);
      FinishForward();
    } catch (...) {
      sums = CurrentExceptionToStatus();
    }
    CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(group_, sums.status(), "measure"));
    if (sums->empty()) return absl::OkStatus();
    group_.AllReduceHost(absl::MakeSpan(*sums));
    result->measurement = objective_.Summarize(*sums, info);
    return absl::OkStatus();
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
                   const StepInfo& info, std::vector<double>* sums) {
  const std::vector<double> totals = objective.StepTotals(batch, info);
  for (size_t i = 0; i < sums->size(); ++i) (*sums)[i] += totals.at(i);
}

absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request) {
  return Evaluation(request).Run();
}

}  // namespace capstan
