// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/evaluator.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "plugins/sdk/memory.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/step_sums.h"
#include "trainer/session/whose_code.h"

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
    for (size_t i = 0; i < tags.size(); ++i) {
      const ExactSum* const pair = &sums[kFirstMetric + 2 * i];
      const double count = pair[1].Value();
      if (count == 0) continue;
      result.tagged.emplace_back(tags[i].eval, pair[0].Value() / count);
    }
    CAPSTAN_RETURN_IF_ERROR(Measure(&result));
    return result;
  }

 private:
  absl::Status EndPart(const absl::Status& mine, const char* what) {
    if (mine.ok() || absl::IsCancelled(mine) || IsLostPeer(mine)) {
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

  absl::StatusOr<Batch> BatchAt(int64_t index) const {
    const int64_t begin = index * request_.micro_batch_size;
    std::vector<int64_t> samples(
        std::min(request_.micro_batch_size, request_.data->size() - begin));
    std::iota(samples.begin(), samples.end(), begin);
    const DatasetReader* const forgiving = request_.forgiving;
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
      for (int64_t i = group_.rank(); i < batches; i += group_.size()) {
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
      // A lost connection ends the loop, or what ends the others' as well.
      if (IsLostPeer(status)) return status;
      if (!status.ok() && PhaseGroupOf(group_) != nullptr) return status;
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
      const WhoseCode code(request_.objective_name, "Measure");
      sums = objective_.Measure(*request_.model, *request_.data, info,
                                *request_.runner);
      FinishForward();
    } catch (...) {
      sums = CurrentExceptionToStatus();
    }
    // The others may be in the collectives of a forward.
    if (!sums.ok() && !absl::IsCancelled(sums.status()) &&
        request_.strategy != nullptr &&
        request_.strategy->collective_forward()) {
      return AgreeAfterCollectives(group_, sums.status(), "measure");
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

std::string AfterStep(int64_t step) {
  return absl::StrCat("after step ", step);
}

}  // namespace

void AddStepTotals(const Objective& objective, const Batch& batch,
                   const StepInfo& info, absl::Span<ExactSum> sums) {
  const std::vector<double> totals = objective.StepTotals(batch, info);
  for (size_t i = 0; i < sums.size(); ++i) sums[i].Add(totals.at(i));
}

absl::StatusOr<EvaluationResult> Evaluate(const EvaluationRequest& request) {
  return Evaluation(request).Run();
}

Evaluator::Evaluator(Session* session, RunCheckpoints* checkpoints)
    : session_(*session),
      checkpoints_(*checkpoints),
      prompts_(session->config.train().sample_prompts()) {}

absl::Status Evaluator::CatchUp() {
  const int64_t step = session_.first_step;
  if (step == 0) return Sample("before training");
  if (!Due(session_.config.train().eval_every(), step) || !session_.GoesOn()) {
    return absl::OkStatus();
  }
  if (session_.state.eval_step != step) CAPSTAN_RETURN_IF_ERROR(Evaluate());
  const Reporter* const reporter = session_.reporter.get();
  CAPSTAN_ASSIGN_OR_RETURN(
      const bool sampled,
      AnyRank(*session_.group,
              reporter != nullptr && reporter->HasGenerations(step)));
  if (sampled || !session_.GoesOn()) return absl::OkStatus();
  return Sample(AfterStep(step));
}

absl::Status Evaluator::Evaluate() {
  const TrainState& state = session_.state;
  const Train& train = session_.config.train();
  RunParts& parts = session_.parts;
  if (parts.eval_data == nullptr || evaluated_step_ == state.step) {
    return absl::OkStatus();
  }
  EvaluationRequest request;
  request.model = parts.model.get();
  request.objective = parts.objective.get();
  request.data = parts.eval_data.get();
  request.forgiving = session_.forgiving_eval.get();
  request.group = session_.group.get();
  request.runner = &session_.runner;
  request.objective_name = session_.plugins.objective;
  request.strategy = parts.strategy.get();
  request.micro_batch_size = session_.job.evaluation_batch > 0
                                 ? session_.job.evaluation_batch
                                 : session_.job.batch.micro_batch_size;
  request.max_batches = train.eval_batches();
  request.seed = train.seed();
  request.last = state.step >= session_.max_steps;
  Reporter* const reporter = session_.reporter.get();
  if (reporter != nullptr) {
    request.measuring = [reporter](double done) { reporter->Evaluating(done); };
  }
  const absl::StatusOr<EvaluationResult> result = capstan::Evaluate(request);
  if (!result.ok()) {
    return session_.StopIfCancelled(
        ExplainMemory(result.status(), session_, /*micro_batch=*/-1));
  }
  if (request.forgiving != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(ShareBadSamples("eval_data",
                                            request.forgiving->All(), &session_,
                                            &session_.state.bad_eval_samples));
  }
  evaluated_step_ = state.step;
  if (reporter != nullptr && result->measurement.has_value()) {
    reporter->Measured(state.step, *result->measurement);
  }
  if (result->count == 0) {
    if (!std::exchange(told_empty_, true)) {
      session_.Note(absl::StrCat(
          "step ", state.step,
          ": the evaluation's data has no targets, so that there is no loss; "
          "this is said once"));
    }
    return absl::OkStatus();
  }
  const double loss = result->loss_sum / result->count;
  session_.eval_loss = loss;
  if (reporter != nullptr) reporter->Eval(state.step, loss, result->tagged);
  return Remember(loss);
}

absl::Status Evaluator::Remember(double eval_loss) {
  TrainState& state = session_.state;
  // A resumed run re-evaluates its first step if that is also its last.
  if (state.eval_step == state.step) return absl::OkStatus();
  state.eval_step = state.step;
  if (std::isfinite(eval_loss) &&
      (state.best_step < 0 || eval_loss < state.best_eval_loss)) {
    state.best_eval_loss = eval_loss;
    state.best_step = state.step;
    state.evals_without_better = 0;
    return KeepsBest(session_.config.train()) ? checkpoints_.Save()
                                              : absl::OkStatus();
  }
  ++state.evals_without_better;
  if (session_.OutOfPatience()) {
    session_.Note(absl::StrFormat(
        "step %d: %d evaluations without a lower eval loss than %.4f of step "
        "%d; the run ends here (train.early_stopping_patience)",
        state.step, state.evals_without_better, state.best_eval_loss,
        state.best_step));
  }
  return absl::OkStatus();
}

absl::Status Evaluator::Sample(const std::string& title) {
  if (prompts_.empty()) return absl::OkStatus();
  // generations.jsonl is found by its path.
  CAPSTAN_RETURN_IF_ERROR(checkpoints_.CheckFolder());
  // The signal may have reached only ranks that don't take part.
  absl::Status mine = StopStatus();
  std::vector<Generation> generations;
  if (session_.reporter != nullptr ||
      session_.parts.strategy->collective_forward()) {
    absl::StatusOr<std::vector<Generation>> made = SampleAll(title);
    mine = made.status();
    if (made.ok()) generations = *std::move(made);
  }
  // The others wait here rather than in the next step's collectives: a signal
  // in between must not cost that step.
  CAPSTAN_RETURN_IF_ERROR(
      session_.StopIfCancelled(AgreeOrStop(*session_.group, mine, "sample")));
  if (session_.reporter != nullptr && !session_.stopping) {
    session_.reporter->Generations(session_.state.step, title, generations);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Generation>> Evaluator::SampleAll(
    const std::string& title) {
  std::vector<Generation> generations;
  for (const SamplePrompt& prompt : prompts_) {
    absl::StatusOr<Generation> made = SampleOne(prompt);
    if (absl::IsCancelled(made.status()) || IsLostPeer(made.status())) {
      return made.status();
    }
    if (made.ok()) {
      generations.push_back(*std::move(made));
    } else {
      session_.Note(
          absl::StrCat("no sample ", title, ": ", made.status().message()));
    }
  }
  return generations;
}

// Ends a sample on all ranks that make it; `mine` is this one's outcome.
absl::Status Evaluator::EndSample(const absl::Status& mine, bool in_forward,
                                  StopPoll* poll) {
  Strategy& strategy = *session_.parts.strategy;
  ProcessGroup& group = *session_.group;
  absl::Status status = mine;
  const auto finish = [&strategy] { strategy.FinishForward(); };
  const auto good = [&status] {
    return status.ok() || absl::IsCancelled(status);
  };
  if (strategy.collective_forward() && PhaseGroupOf(group) != nullptr) {
    if (good() && in_forward) {
      status.Update(CatchAll([&] {
        finish();
        return absl::OkStatus();
      }));
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const bool broke_off,
        BrokeOff(group, good() ? absl::OkStatus() : status, "sample", finish));
    if (broke_off && (good() || IsLostPeer(status))) {
      return absl::InternalError("another rank could not sample");
    }
    return status;
  }
  if (IsLostPeer(status)) return status;
  // A rank that fails owes the collectives of what it has begun.
  if (in_forward) {
    const absl::Status finished = CatchAll([&] {
      finish();
      return absl::OkStatus();
    });
    if (IsLostPeer(finished)) return finished;
    if (good()) status.Update(finished);
  }
  if (poll->Leave(!good()) && good()) {
    return absl::InternalError("another rank could not sample");
  }
  return status;
}

// Either all sampling ranks get a text or none: if forward contains
// collectives, a failing rank takes the others along. CANCELLED: stopped by a
// signal. UNAVAILABLE: the other ranks are lost.
absl::StatusOr<Generation> Evaluator::SampleOne(const SamplePrompt& prompt) {
  RunParts& parts = session_.parts;
  const DatasetReader& data = *parts.train_data;
  const Tokenizer& tokenizer = *data.tokenizer();
  const bool user = prompt.kind_case() == SamplePrompt::kUser;
  const std::string& shown = user ? prompt.user() : prompt.prompt();
  StopPoll poll(
      parts.strategy->collective_forward() ? session_.group.get() : nullptr,
      StopPoll::Votes::kEveryRound);
  // Each forward completes before the next vote, so that a failing rank knows
  // which collectives it still has to join.
  enum { kNotAsked, kUnderWay, kFinished } forward = kNotAsked;
  SampleOptions options;
  options.seed = session_.config.train().seed();
  options.max_new_tokens = session_.config.train().sample_max_new_tokens();
  options.stop = [&] {
    if (std::exchange(forward, kFinished) == kUnderWay) {
      parts.strategy->FinishForward();
    }
    if (poll.Ask()) return true;
    forward = kUnderWay;
    return false;
  };
  const int64_t eos = tokenizer.special_ids().eos;
  if (eos >= 0) options.stop_tokens = {eos};

  std::vector<int64_t> ids, text;
  session_.runner.TakeRan();
  const absl::Status status = CatchAll([&]() -> absl::Status {
    ids = user ? data.PromptIds(shown) : tokenizer.Encode(shown);
    const WhoseCode code(session_.plugins.objective, "Sample");
    CAPSTAN_ASSIGN_OR_RETURN(
        text,
        parts.objective->Sample(*parts.model, ids, options, session_.runner));
    return absl::OkStatus();
  });
  // An objective need not ask.
  const bool in_forward =
      forward == kUnderWay ||
      (forward == kNotAsked && (status.ok() || session_.runner.TakeRan()));
  CAPSTAN_RETURN_IF_ERROR(EndSample(status, in_forward, &poll));

  // An answer stands alone, a continuation doesn't.
  Generation generation{shown, "", /*answer=*/user};
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    absl::Span<const int64_t> made =
        absl::MakeConstSpan(text).subspan(ids.size());
    if (!made.empty() && made.back() == eos) made.remove_suffix(1);
    generation.text = tokenizer.Decode(made);
    return absl::OkStatus();
  }));
  return generation;
}

}  // namespace capstan
