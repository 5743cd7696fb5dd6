// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/run_task.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "inference/decode/stop_strings.h"
#include "inference/decode/texts.h"
#include "inference/evaluate/bound_scorer.h"
#include "inference/evaluate/row_values.h"
#include "inference/evaluate/scorer.h"
#include "plugins/sdk/objective.h"

namespace capstan::evaluate {
namespace {

int64_t WrittenTokens(const Task& task, const TokenModel& model) {
  return std::min(task.max_tokens, model.max_positions() - 1);
}

// The logits of other models are no tokens'.
absl::Status CheckWrites(TokenModel* model) {
  if (model->text_scores() == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "the model gives a text a score (a reward model) and writes none, so "
      "that it can't be asked tasks: take a model that writes text");
}

// All questions of a request; of a whole text, its windows.
absl::StatusOr<std::vector<EncodedRequest>> Encode(const Task& task,
                                                   const Request& request,
                                                   const TokenModel& model,
                                                   const Tokenizer& tokenizer) {
  std::vector<EncodedRequest> encoded;
  if (!request.prompt.empty()) {
    encoded.emplace_back();
    encoded.back().context = request.prompt;
    return encoded;
  }
  // The most tokens that may be scored after a context of one token. A causal
  // model predicts the last one without reading it; others read all of them.
  const int64_t scored = model.max_positions() - (model.causal() ? 0 : 1);
  if (task.output == TaskOutput::kRolling) {
    return EncodeWindows(tokenizer, request.questions[0].continuations[0],
                         scored);
  }
  for (const Question& question : request.questions) {
    const bool writes = question.continuations.empty();
    // Where the model writes, there must be room for that.
    const int64_t positions =
        writes ? model.max_positions() - WrittenTokens(task, model) : scored;
    CAPSTAN_ASSIGN_OR_RETURN(EncodedRequest one,
                             EncodeRequest(tokenizer, question.context,
                                           question.continuations, positions));
    encoded.push_back(std::move(one));
  }
  return encoded;
}

class TaskRun {
 public:
  TaskRun(const Task& task, const std::vector<Request>& requests,
          const Answerer& answerer)
      : task_(task),
        requests_(requests),
        answerer_(answerer),
        group_(answerer.group),
        model_(answerer.model.token_model()),
        poll_(answerer.together ? &answerer.group : nullptr) {}

  absl::StatusOr<TaskResult> Run() {
    const absl::Status mine = CatchAll([this] { return AnswerMine(); });
    // The others may be in the collectives of a forward.
    if (answerer_.together && !mine.ok() && !absl::IsCancelled(mine)) {
      return AgreeAfterCollectives(group_, mine, "evaluate");
    }
    CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(group_, mine, "evaluate"));
    TaskResult result;
    result.requests = static_cast<int64_t>(requests_.size());
    CAPSTAN_RETURN_IF_ERROR(SumUp(
        answerer_.together ? samples_
                           : absl::StrJoin(FromAllRanks(group_, samples_), ""),
        &result));
    if (group_.rank() != 0) result.samples.clear();
    return result;
  }

 private:
  // Long contexts first, so that what doesn't fit fails early, and each batch
  // has contexts of similar length.
  absl::Status AnswerMine() {
    std::vector<std::vector<EncodedRequest>> encoded;
    std::vector<size_t> longest;
    for (const Request& request : requests_) {
      absl::StatusOr<std::vector<EncodedRequest>> one =
          Encode(task_, request, *model_, answerer_.tokenizer);
      CAPSTAN_RETURN_IF_ERROR(Annotate(one.status(), request.place));
      longest.push_back(0);
      for (const EncodedRequest& question : *one) {
        longest.back() = std::max(longest.back(), question.context.size());
      }
      encoded.push_back(*std::move(one));
    }
    std::vector<size_t> order(requests_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return longest[a] > longest[b];
    });
    const size_t size = static_cast<size_t>(answerer_.batch_size);
    const size_t batches = (order.size() + size - 1) / size;
    const size_t ranks = answerer_.together ? 1 : group_.size();
    for (size_t i = group_.rank() % ranks; i < batches; i += ranks) {
      if (poll_.Ask()) return absl::CancelledError("stopped");
      const absl::Span<const size_t> batch =
          absl::MakeConstSpan(order).subspan(i * size, size);
      std::vector<EncodedRequest> of_batch;
      std::vector<size_t> counts;
      for (const size_t index : batch) {
        counts.push_back(encoded[index].size());
        std::move(encoded[index].begin(), encoded[index].end(),
                  std::back_inserter(of_batch));
      }
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                               Ask(batch, counts, of_batch));
      answerer_.finish();
      for (size_t j = 0; j < batch.size(); ++j) {
        CAPSTAN_RETURN_IF_ERROR(Count(batch[j], answers[j]));
      }
      answerer_.progress(static_cast<double>(i + 1) /
                         static_cast<double>(batches));
    }
    return absl::OkStatus();
  }

  // `counts`: how many of `encoded` belong to each of the batch.
  absl::StatusOr<std::vector<Answer>> Ask(
      absl::Span<const size_t> batch, const std::vector<size_t>& counts,
      const std::vector<EncodedRequest>& encoded) {
    if (task_.output == TaskOutput::kGenerateUntil) {
      return Write(batch, encoded);
    }
    std::vector<std::vector<Score>> scores;
    const size_t size = static_cast<size_t>(answerer_.batch_size);
    for (size_t i = 0; i < encoded.size(); i += size) {
      CAPSTAN_ASSIGN_OR_RETURN(
          std::vector<std::vector<Score>> some,
          Likelihoods(absl::MakeConstSpan(encoded).subspan(i, size)));
      std::move(some.begin(), some.end(), std::back_inserter(scores));
    }
    std::vector<Answer> answers(batch.size());
    size_t next = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      for (size_t j = 0; j < counts[i]; ++j, ++next) {
        answers[i].scores.insert(answers[i].scores.end(), scores[next].begin(),
                                 scores[next].end());
      }
      for (const Score& score : answers[i].scores) {
        if (!std::isnan(score.log_likelihood)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(requests_[batch[i]].place,
                         ": the model's logits are not finite: its answers "
                         "can't be compared"));
      }
      if (task_.output == TaskOutput::kRolling) JoinWindows(&answers[i].scores);
    }
    return answers;
  }

  absl::StatusOr<std::vector<std::vector<Score>>> Likelihoods(
      absl::Span<const EncodedRequest> encoded) {
    if (model_->causal()) {
      return ScoreContinuations(model_, encoded, answerer_.runner);
    }
    BoundSettings settings;
    settings.samples = answerer_.bound_samples;
    settings.seed = answerer_.seed;
    // Of several choices usually only the likeliest counts.
    settings.greedy =
        task_.output == TaskOutput::kLogLikelihood ||
        (task_.output == TaskOutput::kMultipleChoice && AsksWhatIsGreedy());
    return ScoreByBound(model_, encoded, settings, answerer_.runner);
  }

  bool AsksWhatIsGreedy() const {
    return task_.results != nullptr || task_.HasMetric("exact_match");
  }

  static void JoinWindows(std::vector<Score>* scores) {
    Score whole;
    for (const Score& window : *scores) {
      whole.log_likelihood += window.log_likelihood;
      whole.greedy &= window.greedy;
    }
    *scores = {whole};
  }

  // The texts of each of the batch: `repeats` draws, of which greedy ones are
  // the same.
  absl::StatusOr<std::vector<Answer>> Write(
      absl::Span<const size_t> batch,
      const std::vector<EncodedRequest>& encoded) {
    std::vector<Answer> answers(batch.size());
    const int64_t draws = task_.sample ? task_.repeats : 1;
    for (int64_t draw = 0; draw < draws; ++draw) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                               WriteOnce(batch, draw, encoded));
      for (size_t i = 0; i < texts.size(); ++i) {
        answers[i].texts.push_back(texts[i]);
      }
    }
    for (Answer& answer : answers) {
      answer.texts.resize(task_.repeats, answer.texts[0]);
    }
    return answers;
  }

  absl::StatusOr<std::vector<std::string>> WriteOnce(
      absl::Span<const size_t> batch, int64_t draw,
      const std::vector<EncodedRequest>& encoded) {
    SampleOptions options;
    options.max_new_tokens = WrittenTokens(task_, *model_);
    options.stop = [this] {
      answerer_.finish();
      return poll_.Ask();
    };
    options.greedy = !task_.sample;
    if (task_.sample) {
      options.temperature = task_.temperature;
      options.top_p = task_.top_p;
    }
    std::vector<int64_t> stop_tokens;  // besides the model's own
    const int64_t eos = answerer_.tokenizer.special_ids().eos;
    if (eos >= 0) stop_tokens = {eos};
    std::vector<BatchPrompt> prompts;
    for (size_t i = 0; i < encoded.size(); ++i) {
      const uint64_t seed = answerer_.seed + batch[i] +
                            static_cast<uint64_t>(draw) * requests_.size();
      prompts.push_back({encoded[i].context, seed, stop_tokens});
    }
    const StopStrings stops(task_.until);
    std::vector<std::string> written(prompts.size());
    const auto ended = [&](size_t row, absl::Span<const int64_t> text) {
      AppendText(answerer_.tokenizer, text.back(), &written[row]);
      return stops.EndIn(written[row]);
    };
    CAPSTAN_ASSIGN_OR_RETURN(
        const auto ids, SampleAll(answerer_.model, answerer_.objective, prompts,
                                  options, ended, answerer_.runner));
    std::vector<std::string> texts(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (size_t t = prompts[i].ids.size(); t < ids[i].size(); ++t) {
        AppendText(answerer_.tokenizer, ids[i][t], &texts[i]);
      }
      texts[i].resize(stops.EndOf(texts[i]));
    }
    return texts;
  }

  absl::Status Count(size_t index, const Answer& answer) {
    const Request& request = requests_[index];
    CAPSTAN_ASSIGN_OR_RETURN(const Json values,
                             ValuesOf(task_, request, answer));
    Json sample = {{"request", index}, {"place", request.place}};
    if (request.prompt.empty()) {
      sample["context"] = request.questions[0].context;
    }
    if (!answer.scores.empty()) {
      sample["answers"] = ScoresJson(request, answer);
      if (!request.gold.empty()) sample["gold"] = request.gold;
    } else {
      sample["text"] = answer.texts[0];
      if (answer.texts.size() > 1) sample["texts"] = answer.texts;
      sample["references"] = request.references;
    }
    // What SumUp looks for.
    Json names = Json::array();
    for (const auto& [name, value] : values.items()) names.push_back(name);
    sample["metrics"] = std::move(names);
    sample.update(values);
    absl::StrAppend(&samples_, JsonText(sample), "\n");
    return absl::OkStatus();
  }

  static Json ScoresJson(const Request& request, const Answer& answer) {
    Json scores = Json::array();
    size_t next = 0;
    for (const Question& question : request.questions) {
      for (const std::string& text : question.continuations) {
        Json score = {{"text", text}};
        if (request.questions.size() > 1) score["context"] = question.context;
        score["log_likelihood"] = answer.scores[next].log_likelihood;
        score["greedy"] = answer.scores[next].greedy;
        scores.push_back(std::move(score));
        ++next;
      }
    }
    return scores;
  }

  // The samples of all ranks, a line each, and their numbers, both in the order
  // of the requests.
  absl::Status SumUp(const std::string& lines, TaskResult* result) const {
    std::map<int64_t, std::pair<absl::string_view, Json>> samples;
    for (const absl::string_view line :
         absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      Json sample = ParseJson<Json>(line);
      const int64_t request = sample["request"].get<int64_t>();
      samples[request] = {line, std::move(sample)};
    }
    std::vector<std::string> names;
    std::map<std::string, std::vector<Json>> values;
    for (const auto& [request, sample] : samples) {
      const auto& [line, json] = sample;
      result->samples.emplace_back(line);
      for (const Json& metric : json["metrics"]) {
        const std::string name = metric.get<std::string>();
        if (values.count(name) == 0) names.push_back(name);
        values[name].push_back(json[name]);
      }
    }
    for (const std::string& name : names) {
      absl::StatusOr<TaskNumber> number =
          Aggregate(AggregationFor(name), values[name]);
      if (!number.ok()) {
        return Annotate(number.status(), absl::StrCat(task_.path, ": ", name));
      }
      number->name = name;
      result->numbers.push_back(*std::move(number));
    }
    return absl::OkStatus();
  }

  // What process_results gives beyond the task's metrics is a mean.
  std::string AggregationFor(const std::string& name) const {
    const std::string metric = name.substr(0, name.find(','));
    for (const TaskMetric& known : task_.metrics) {
      if (known.name == metric) return known.aggregation;
    }
    return "mean";
  }

  const Task& task_;
  const std::vector<Request>& requests_;
  const Answerer& answerer_;
  ProcessGroup& group_;
  TokenModel* const model_;
  StopPoll poll_;
  std::string samples_;  // of this rank, a line each
};

}  // namespace

void AppendText(const Tokenizer& tokenizer, int64_t id, std::string* text) {
  if (tokenizer.IsSpecial(id)) return;
  text->append(tokenizer.Decode(absl::MakeConstSpan(&id, 1)));
}

absl::StatusOr<int64_t> CheckRequests(const Task& task,
                                      const std::vector<Request>& requests,
                                      TokenModel& model,
                                      const Tokenizer& tokenizer) {
  CAPSTAN_RETURN_IF_ERROR(CheckWrites(&model));
  const bool writes = task.output == TaskOutput::kGenerateUntil;
  const int64_t written = writes ? WrittenTokens(task, model) : 0;
  size_t longest = 0;
  for (const Request& request : requests) {
    const auto encoded = Encode(task, request, model, tokenizer);
    CAPSTAN_RETURN_IF_ERROR(Annotate(encoded.status(), request.place));
    for (const EncodedRequest& one : *encoded) {
      size_t continued = static_cast<size_t>(written);
      for (const std::vector<int64_t>& continuation : one.continuations) {
        continued = std::max(continued, continuation.size());
      }
      longest = std::max(longest, one.context.size() + continued);
    }
  }
  return static_cast<int64_t>(longest);
}

absl::StatusOr<TaskResult> RunTask(const Task& task,
                                   const std::vector<Request>& requests,
                                   const Answerer& answerer) {
  CAPSTAN_RETURN_IF_ERROR(CheckWrites(answerer.model.token_model()));
  return TaskRun(task, requests, answerer).Run();
}

}  // namespace capstan::evaluate
