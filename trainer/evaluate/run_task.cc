// SPDX-License-Identifier: Apache-2.0
#include "trainer/evaluate/run_task.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/batch_sampler.h"
#include "trainer/evaluate/scorer.h"
#include "trainer/process_group/agree.h"

namespace capstan::evaluate {
namespace {

// What the model said.
struct Answer {
  std::vector<Score> scores;  // of the continuations
  std::string text;
};

// The first of the greatest, as numpy's argmax.
int64_t Best(const std::vector<double>& values) {
  return std::max_element(values.begin(), values.end()) - values.begin();
}

bool Contains(const std::vector<int64_t>& all, int64_t value) {
  return std::find(all.begin(), all.end(), value) != all.end();
}

double ValueOf(const TaskMetric& metric, const Request& request,
               const Answer& answer, const std::string& filtered) {
  if (metric.name == "perplexity") return answer.scores[0].log_likelihood;
  if (request.gold.empty() && !answer.scores.empty()) {
    return answer.scores[0].greedy ? 1.0 : 0.0;
  }
  if (!answer.scores.empty()) {
    const bool per_character = metric.name == "acc_norm";
    std::vector<double> values;
    for (size_t i = 0; i < answer.scores.size(); ++i) {
      const double characters =
          std::max<double>(static_cast<double>(request.characters[i]), 1.0);
      values.push_back(answer.scores[i].log_likelihood /
                       (per_character ? characters : 1.0));
    }
    return Contains(request.gold, Best(values)) ? 1.0 : 0.0;
  }
  double best = 0.0;
  for (const std::string& reference : request.references) {
    best =
        std::max(best, metric.name == "rouge_l" ? RougeL(filtered, reference)
                       : ExactMatch(filtered, reference, metric.exact) ? 1.0
                                                                       : 0.0);
  }
  return best;
}

// Appends the ranks' texts in their order; the result is whole on all ranks.
std::string GatherText(const std::string& text, ProcessGroup& group) {
  std::vector<double> lengths(group.size(), 0.0);
  lengths[group.rank()] = static_cast<double>(text.size());
  group.AllReduceHost(absl::MakeSpan(lengths));
  const int64_t longest =
      static_cast<int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  if (longest == 0) return "";
  const at::Tensor mine = at::zeros({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({longest * group.size()}, at::kByte);
  group.AllGather(all, mine)->Wait();
  std::string whole;
  for (int rank = 0; rank < group.size(); ++rank) {
    whole.append(
        static_cast<const char*>(all.const_data_ptr()) + rank * longest,
        static_cast<size_t>(lengths[rank]));
  }
  return whole;
}

class TaskRun {
 public:
  TaskRun(const Task& task, const std::vector<Request>& requests,
          const Answerer& answerer)
      : task_(task),
        requests_(requests),
        answerer_(answerer),
        group_(*answerer.group),
        model_(answerer.model->token_model()) {
    for (const TaskFilter& filter : task.filters) {
      for (const TaskMetric& metric : task.metrics) {
        names_.push_back(filter.name.empty()
                             ? metric.name
                             : absl::StrCat(metric.name, ",", filter.name));
      }
      // Filters are for texts.
      if (task.output != TaskOutput::kGenerateUntil) break;
    }
    means_.resize(names_.size());
  }

  absl::StatusOr<TaskResult> Run() {
    CAPSTAN_RETURN_IF_ERROR(AgreeOrStop(
        group_, CatchAll([this] { return AnswerMine(); }), "evaluate"));
    std::vector<double> sums(Mean::kSums * means_.size());
    for (size_t i = 0; i < means_.size(); ++i) {
      means_[i].Store(&sums[Mean::kSums * i]);
    }
    group_.AllReduceHost(absl::MakeSpan(sums));
    TaskResult result;
    result.requests = static_cast<int64_t>(requests_.size());
    for (size_t i = 0; i < means_.size(); ++i) {
      const Mean mean = Mean::Load(&sums[Mean::kSums * i]);
      if (names_[i] == "perplexity") {
        result.numbers.push_back(
            {names_[i], std::exp(-mean.mean()), absl::nullopt});
      } else {
        result.numbers.push_back(
            {names_[i], mean.mean(), mean.standard_error()});
      }
    }
    const std::string lines = GatherText(samples_, group_);
    if (group_.rank() == 0) SortSamples(lines, &result);
    return result;
  }

 private:
  int64_t WrittenTokens() const {
    return std::min(task_.max_tokens, model_->max_positions() - 1);
  }

  absl::StatusOr<EncodedRequest> Encode(const Request& request) const {
    if (!request.prompt.empty()) {
      EncodedRequest encoded;
      encoded.context = request.prompt;
      return encoded;
    }
    const bool writes = request.continuations.empty();
    // Where the model writes, there must be room for that.
    const int64_t positions =
        model_->max_positions() - (writes ? WrittenTokens() : 0);
    absl::StatusOr<EncodedRequest> encoded =
        EncodeRequest(*answerer_.tokenizer, request.context,
                      request.continuations, positions);
    CAPSTAN_RETURN_IF_ERROR(Annotate(encoded.status(), request.place));
    return encoded;
  }

  // Long contexts first, so that what doesn't fit fails early, and each batch
  // has contexts of similar length.
  absl::Status AnswerMine() {
    std::vector<EncodedRequest> encoded;
    for (const Request& request : requests_) {
      CAPSTAN_ASSIGN_OR_RETURN(EncodedRequest one, Encode(request));
      encoded.push_back(std::move(one));
    }
    std::vector<size_t> order(requests_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return encoded[a].context.size() > encoded[b].context.size();
    });
    const size_t size = static_cast<size_t>(answerer_.batch_size);
    const size_t batches = (order.size() + size - 1) / size;
    StopPoll poll(nullptr);
    for (size_t i = group_.rank(); i < batches; i += group_.size()) {
      if (poll.Ask()) return absl::CancelledError("stopped");
      const absl::Span<const size_t> batch =
          absl::MakeConstSpan(order).subspan(i * size, size);
      std::vector<EncodedRequest> of_batch;
      for (const size_t index : batch) {
        of_batch.push_back(std::move(encoded[index]));
      }
      CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Answer> answers,
                               Ask(batch, of_batch));
      for (size_t j = 0; j < batch.size(); ++j) Count(batch[j], answers[j]);
      answerer_.progress(static_cast<double>(i + 1) /
                         static_cast<double>(batches));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<Answer>> Ask(
      absl::Span<const size_t> batch,
      const std::vector<EncodedRequest>& encoded) {
    if (task_.output == TaskOutput::kGenerateUntil) {
      return Write(batch, encoded);
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        std::vector<std::vector<Score>> scores,
        ScoreContinuations(model_, encoded, *answerer_.runner));
    std::vector<Answer> answers(scores.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      for (const Score& score : scores[i]) {
        if (!std::isnan(score.log_likelihood)) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(requests_[batch[i]].place,
                         ": the model's logits are not finite: its answers "
                         "can't be compared"));
      }
      answers[i].scores = std::move(scores[i]);
    }
    return answers;
  }

  absl::StatusOr<std::vector<Answer>> Write(
      absl::Span<const size_t> batch,
      const std::vector<EncodedRequest>& encoded) {
    SampleOptions options;
    options.max_new_tokens = WrittenTokens();
    options.greedy = !task_.sample;
    if (task_.sample) options.temperature = task_.temperature;
    std::vector<BatchPrompt> prompts;
    for (size_t i = 0; i < encoded.size(); ++i) {
      prompts.push_back({encoded[i].context, answerer_.seed + batch[i],
                         answerer_.stop_tokens});
    }
    std::vector<std::string> written(prompts.size());
    const auto ended = [&](size_t row, absl::Span<const int64_t> text) {
      AppendText(*answerer_.tokenizer, text.back(), &written[row]);
      return EndOf(written[row]) < written[row].size();
    };
    absl::StatusOr<std::vector<std::vector<int64_t>>> texts =
        absl::UnimplementedError("");
    auto* const sampler = dynamic_cast<BatchSampler*>(answerer_.objective);
    if (sampler != nullptr) {
      texts = sampler->SampleBatch(*answerer_.model, prompts, options, ended,
                                   *answerer_.runner);
    }
    if (absl::IsUnimplemented(texts.status())) {
      CAPSTAN_ASSIGN_OR_RETURN(texts, WriteOneByOne(prompts, options));
    }
    CAPSTAN_RETURN_IF_ERROR(texts.status());
    std::vector<Answer> answers(prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      std::string& text = answers[i].text;
      for (size_t t = prompts[i].ids.size(); t < (*texts)[i].size(); ++t) {
        AppendText(*answerer_.tokenizer, (*texts)[i][t], &text);
      }
      text.resize(EndOf(text));
    }
    return answers;
  }

  absl::StatusOr<std::vector<std::vector<int64_t>>> WriteOneByOne(
      const std::vector<BatchPrompt>& prompts, SampleOptions options) {
    std::vector<std::vector<int64_t>> texts;
    for (const BatchPrompt& prompt : prompts) {
      options.seed = prompt.seed;
      options.stop_tokens = prompt.stop_tokens;
      CAPSTAN_ASSIGN_OR_RETURN(
          std::vector<int64_t> text,
          answerer_.objective->Sample(*answerer_.model, prompt.ids, options,
                                      *answerer_.runner));
      texts.push_back(std::move(text));
    }
    return texts;
  }

  // Where the first stop begins; the text's size without one.
  size_t EndOf(const std::string& text) const {
    size_t end = text.size();
    for (const std::string& stop : task_.until) {
      if (!stop.empty()) end = std::min(end, text.find(stop));
    }
    return std::min(end, text.size());
  }

  void Count(size_t index, const Answer& answer) {
    const Request& request = requests_[index];
    Json sample = {{"request", index}, {"place", request.place}};
    if (request.prompt.empty()) sample["context"] = request.context;
    if (!answer.scores.empty()) {
      Json scores = Json::array();
      for (size_t i = 0; i < answer.scores.size(); ++i) {
        scores.push_back({{"text", request.continuations[i]},
                          {"log_likelihood", answer.scores[i].log_likelihood},
                          {"greedy", answer.scores[i].greedy}});
      }
      sample["answers"] = std::move(scores);
      if (!request.gold.empty()) sample["gold"] = request.gold;
    } else {
      sample["text"] = answer.text;
      sample["references"] = request.references;
    }
    for (size_t i = 0; i < means_.size(); ++i) {
      const TaskFilter& filter = task_.filters[i / task_.metrics.size()];
      const double value =
          ValueOf(task_.metrics[i % task_.metrics.size()], request, answer,
                  answer.scores.empty() ? filter.Apply(answer.text) : "");
      means_[i].Add(value);
      sample[names_[i]] = value;
    }
    absl::StrAppend(&samples_,
                    sample.dump(-1, ' ', /*ensure_ascii=*/false,
                                Json::error_handler_t::replace),
                    "\n");
  }

  static void SortSamples(const std::string& lines, TaskResult* result) {
    std::vector<std::pair<int64_t, std::string>> sorted;
    for (const absl::string_view line :
         absl::StrSplit(lines, '\n', absl::SkipEmpty())) {
      sorted.emplace_back(ParseJson<Json>(line)["request"].get<int64_t>(),
                          std::string(line));
    }
    std::sort(sorted.begin(), sorted.end());
    for (auto& [index, line] : sorted) {
      result->samples.push_back(std::move(line));
    }
  }

  const Task& task_;
  const std::vector<Request>& requests_;
  const Answerer& answerer_;
  ProcessGroup& group_;
  TokenModel* const model_;
  // Of each filter's metrics.
  std::vector<std::string> names_;
  std::vector<Mean> means_;
  std::string samples_;  // of this rank, a line each
};

}  // namespace

void AppendText(const Tokenizer& tokenizer, int64_t id, std::string* text) {
  if (tokenizer.IsSpecial(id)) return;
  text->append(tokenizer.Decode(absl::MakeConstSpan(&id, 1)));
}

absl::StatusOr<TaskResult> RunTask(const Task& task,
                                   const std::vector<Request>& requests,
                                   const Answerer& answerer) {
  return TaskRun(task, requests, answerer).Run();
}

}  // namespace capstan::evaluate
