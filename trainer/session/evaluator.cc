// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/evaluator.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/phase_group.h"
#include "inference/evaluate/task_suite.h"
#include "plugins/sdk/memory.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/session/eval_tasks.h"
#include "trainer/session/evaluate.h"
#include "trainer/session/explain_failure.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/whose_code.h"

namespace capstan {
namespace {

// "eval_loss 2.5, eval_acc 0.75".
std::string NumbersText(const TaggedNumbers& numbers) {
  return absl::StrJoin(
      numbers, ", ", [](std::string* text, const auto& number) {
        absl::StrAppendFormat(text, "%s %.6g", MetricName(number.first),
                              number.second);
      });
}

std::string AfterStep(int64_t step) {
  return absl::StrCat("after step ", step);
}

}  // namespace

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
  if (!session_.parts.evaluates() || evaluated_step_ == state.step) {
    return absl::OkStatus();
  }
  const double start = MonotonicSeconds();
  TaggedNumbers numbers;
  std::vector<Measurement> measurements;
  absl::Status measured = CatchAll([&] {
    return session_.WithSharedModel([&]() -> absl::Status {
      for (EvaluatedData& data : session_.evaluated) {
        CAPSTAN_RETURN_IF_ERROR(MeasureData(&data, &numbers, &measurements));
      }
      return ScoreTasks(&numbers);
    });
  });
  if (absl::IsCancelled(measured)) return session_.StopIfCancelled(measured);
  measured = AgreeAfterCollectives(
      *session_.group, ExplainMemory(measured, session_, /*micro_batch=*/-1),
      "evaluate");
  if (!measured.ok()) return checkpoints_.SaveBefore(measured);
  evaluated_step_ = state.step;
  Reporter* const reporter = session_.reporter.get();
  TaggedNumbers all = numbers;
  for (const Measurement& measurement : measurements) {
    if (reporter != nullptr) reporter->Measured(state.step, measurement);
    all.insert(all.end(), measurement.scalars.begin(),
               measurement.scalars.end());
  }
  session_.measured = all;
  if (reporter != nullptr && !numbers.empty()) {
    reporter->Eval(state.step, numbers);
  }
  session_.Event({kEvaluationEvent, state.step, NumbersText(all),
                  MonotonicSeconds() - start});
  return Remember(all);
}

int64_t Evaluator::BatchSize() const {
  return session_.job.evaluation_batch > 0
             ? session_.job.evaluation_batch
             : session_.job.batch.micro_batch_size;
}

absl::Status Evaluator::MeasureData(EvaluatedData* data, TaggedNumbers* numbers,
                                    std::vector<Measurement>* measurements) {
  const TrainState& state = session_.state;
  const Train& train = session_.config.train();
  RunParts& parts = session_.parts;
  EvaluationRequest request;
  request.model = parts.model.get();
  request.objective = parts.objective.get();
  request.data = data->reader;
  request.forgiving = data->forgiving.get();
  request.group = session_.group.get();
  request.mesh = session_.mesh();
  request.runner = &session_.runner;
  request.objective_name = session_.plugins.objective;
  request.data_name = data->plugin;
  request.strategy = parts.strategy.get();
  request.micro_batch_size = BatchSize();
  request.max_batches = train.eval_batches();
  request.seed = train.seed();
  request.last = state.step >= session_.max_steps;
  if (Reporter* const reporter = session_.reporter.get()) {
    request.measuring = [reporter](double done) { reporter->Evaluating(done); };
  }
  CAPSTAN_ASSIGN_OR_RETURN(EvaluationResult result, capstan::Evaluate(request));
  if (request.forgiving != nullptr) {
    CAPSTAN_RETURN_IF_ERROR(
        ShareBadSamples(data->slot, request.forgiving->All(), &session_,
                        data->set.empty() ? &session_.state.bad_eval_samples
                                          : &data->bad_samples));
  }
  const auto tag = [data](const std::string& of_eval_data) {
    return data->set.empty() ? of_eval_data : SetTag(data->set, of_eval_data);
  };
  bool measures = false;
  if (result.measurement.has_value()) {
    measures = !result.measurement->scalars.empty();
    for (auto& [name, value] : result.measurement->scalars) name = tag(name);
    const std::string prefix =
        data->set.empty() ? "" : absl::StrCat(data->set, "_");
    for (MeasuredCurve& curve : result.measurement->curves) {
      curve.name.insert(0, prefix);
    }
    for (MeasuredArray& array : result.measurement->arrays) {
      array.name.insert(0, prefix);
    }
    measurements->push_back(*std::move(result.measurement));
  }
  if (result.count > 0) {
    numbers->emplace_back(tag("eval/loss"), result.loss_sum / result.count);
  } else if (!measures && told_empty_.insert(data->slot).second) {
    session_.Note(absl::StrCat(
        "step ", state.step, ": the evaluation's data (", data->slot,
        ") gives no loss: it has no targets, or the objective has nothing to "
        "compare it with; this is said once"));
  }
  for (const auto& [name, value] : result.tagged) {
    numbers->emplace_back(tag(name), value);
  }
  return absl::OkStatus();
}

absl::Status Evaluator::ScoreTasks(TaggedNumbers* numbers) {
  RunParts& parts = session_.parts;
  if (parts.eval_tasks == nullptr) return absl::OkStatus();
  Strategy& strategy = *parts.strategy;
  evaluate::Answerer answerer{*parts.model, *parts.objective, session_.runner,
                              *parts.train_data->tokenizer(), *session_.group};
  answerer.seed = session_.config.train().seed();
  answerer.together = strategy.collective_forward();
  // Of forwards that have run; a sharding strategy gathers for each.
  StrategyRunner& runner = session_.runner;
  runner.TakeRan();
  answerer.finish = [&strategy, &runner] {
    if (runner.TakeRan()) strategy.FinishForward();
  };
  answerer.batch_size = BatchSize();
  if (Reporter* const reporter = session_.reporter.get()) {
    answerer.progress = [reporter](double done) { reporter->Evaluating(done); };
  }
  const MemoryScope scope(MemoryCategory::kActivations);
  const WhoseCode code(session_.plugins.objective, "Sample");
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<evaluate::NamedNumbers> measured,
                           parts.eval_tasks->Run(answerer));
  for (const evaluate::NamedNumbers& one : measured) {
    for (const evaluate::TaskNumber& number : one.numbers) {
      numbers->emplace_back(TaskTag(one.name, number.name), number.value);
    }
  }
  return absl::OkStatus();
}

absl::Status Evaluator::Remember(const TaggedNumbers& measured) {
  TrainState& state = session_.state;
  // A resumed run re-evaluates its first step if that is also its last.
  if (state.eval_step == state.step) return absl::OkStatus();
  state.eval_step = state.step;
  const Train& train = session_.config.train();
  const std::string metric = BestMetric(train);
  const absl::optional<double> value = MetricIn(measured, metric);
  if (!value.has_value()) {
    if (train.best_metric().empty() || told_no_metric_) return absl::OkStatus();
    told_no_metric_ = true;
    std::vector<std::string> names;
    for (const auto& [tag, number] : measured) names.push_back(MetricName(tag));
    session_.Note(absl::StrCat(
        "WARNING: step ", state.step,
        ": train.best_metric: ", NoSuchMetric(metric, names).message(),
        "; without it no evaluation is the best; this is said once"));
    return absl::OkStatus();
  }
  const bool lower = LowerIsBetter(metric, session_.parts.eval_tasks.get());
  const double best = state.best_eval_loss;
  if (std::isfinite(*value) &&
      (state.best_step < 0 || (lower ? *value < best : *value > best))) {
    state.best_eval_loss = *value;
    state.best_step = state.step;
    state.evals_without_better = 0;
    return KeepsBest(train) ? checkpoints_.Save() : absl::OkStatus();
  }
  ++state.evals_without_better;
  if (session_.OutOfPatience()) {
    session_.Note(absl::StrFormat(
        "step %d: %d evaluations without a %s %s than %.4f of step %d; the run "
        "ends here (train.early_stopping_patience)",
        state.step, state.evals_without_better, lower ? "lower" : "higher",
        metric, best, state.best_step));
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
    mine = session_.WithSharedModel([&]() -> absl::Status {
      CAPSTAN_ASSIGN_OR_RETURN(generations, SampleAll(title));
      return absl::OkStatus();
    });
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
