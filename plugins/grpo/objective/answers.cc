// SPDX-License-Identifier: Apache-2.0
#include "plugins/grpo/objective/answers.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>

#include "base/status.h"
#include "kernels/loss/tokens.h"
#include "plugins/objective/common/decode_loop.h"
#include "plugins/objective/common/next_token.h"

namespace capstan::grpo {
namespace {

// The tokens that an answer may still get.
int64_t RoomOf(const Question& question, const AnswerOptions& options) {
  return options.max_new_tokens - question.answered;
}

// How many of the questions, one at least, are answered side by side: as many
// as options.rows and the positions of one cache allow.
size_t AtOnce(const TokenModel& model, absl::Span<const Question> questions,
              const AnswerOptions& options) {
  size_t rows = 0;
  int64_t longest = 0, room = 0;
  for (size_t count = 0; count < questions.size(); ++count) {
    const Question& next = questions[count];
    rows += next.seeds.size();
    longest = std::max(longest, static_cast<int64_t>(next.prompt.size()));
    room = std::max(room, RoomOf(next, options));
    if (count > 0 &&
        (longest + room > model.max_positions() ||
         (options.rows > 0 && static_cast<int64_t>(rows) > options.rows))) {
      return count;
    }
  }
  return questions.size();
}

// The answers of some questions, side by side.
class Sampling {
 public:
  Sampling(TokenModel* model, absl::Span<const Question> questions,
           const AnswerOptions& options)
      : model_(*model),
        questions_(questions),
        options_(options),
        ends_(EndsOf(*model, {})) {}

  // Appends the answers to `out`.
  absl::Status Run(UnitRunner& runner, std::vector<SampledAnswer>* out) {
    Texts texts;
    size_t answers = out->size();
    int64_t room = 0;
    for (const Question& question : questions_) {
      texts.push_back(question.prompt);
      first_.push_back(answers);
      answers += question.seeds.size();
      room = std::max(room, RoomOf(question, options_));
    }
    out->resize(answers);
    out_ = out;
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Continuation> together,
                             ContinueTogether(&model_, texts, room, runner));
    return DecodeLoop(
        together.get(), room, [] { return false; }, runner, &texts,
        [&](const at::Tensor& logits, std::vector<int64_t>* rows) {
          return Extend(logits, &texts, rows);
        });
  }

 private:
  struct Row {
    TokenDraw draw;
    int64_t most;   // tokens of its text
    size_t answer;  // its place in out_
  };

  // As ExtendTexts.
  absl::Status Extend(const at::Tensor& logits, Texts* texts,
                      std::vector<int64_t>* from) {
    if (rows_.empty()) return Begin(logits, texts, from);
    const size_t count = texts->size();
    CAPSTAN_RETURN_IF_ERROR(Draw(logits, texts));
    from->resize(count);
    std::iota(from->begin(), from->end(), 0);
    DropEnded(texts, from);
    // Nothing to do for the cache.
    if (texts->size() == count) from->clear();
    return absl::OkStatus();
  }

  // The same for the first tokens: each prompt becomes as many texts as it has
  // seeds.
  absl::Status Begin(const at::Tensor& logits, Texts* texts,
                     std::vector<int64_t>* from) {
    Texts all;
    for (size_t q = 0; q < questions_.size(); ++q) {
      const auto prompt = static_cast<int64_t>((*texts)[q].size());
      for (size_t i = 0; i < questions_[q].seeds.size(); ++i) {
        all.push_back((*texts)[q]);
        rows_.push_back({{prompt, ends_, questions_[q].seeds[i]},
                         prompt + RoomOf(questions_[q], options_),
                         first_[q] + i});
        from->push_back(static_cast<int64_t>(q));
      }
    }
    *texts = std::move(all);
    const at::Tensor source =
        at::tensor(at::ArrayRef<int64_t>(*from), at::kLong);
    CAPSTAN_RETURN_IF_ERROR(Draw(logits.index_select(0, source), texts));
    DropEnded(texts, from);
    return absl::OkStatus();
  }

  // Adds a token to each text by its logits, which are of no more use then.
  absl::Status Draw(const at::Tensor& logits, Texts* texts) {
    // Rules change the logits.
    const at::Tensor undisturbed =
        options_.sampler.rules.any() ? logits.clone() : logits;
    const auto count = static_cast<int64_t>(texts->size());
    const at::Tensor tokens = at::zeros({count}, at::kLong);
    int64_t* const token = tokens.mutable_data_ptr<int64_t>();
    const auto vocab = static_cast<size_t>(logits.size(1));
    float* const values = logits.mutable_data_ptr<float>();
    for (int64_t row = 0; row < count; ++row) {
      CAPSTAN_ASSIGN_OR_RETURN(
          token[row], NextToken({values + row * vocab, vocab}, options_.sampler,
                                rows_[row].draw, (*texts)[row]));
      (*texts)[row].push_back(token[row]);
    }
    const at::Tensor log_probs = kernels::LogProbs(
        undisturbed, tokens, options_.sampler.temperature, nullptr);
    for (int64_t row = 0; row < count; ++row) {
      (*out_)[rows_[row].answer].log_probs.push_back(
          log_probs.const_data_ptr<float>()[row]);
    }
    return absl::OkStatus();
  }

  void DropEnded(Texts* texts, std::vector<int64_t>* from) {
    size_t left = 0;
    for (size_t row = 0; row < texts->size(); ++row) {
      const bool ends = rows_[row].draw.EndsWith((*texts)[row].back());
      if (ends ||
          static_cast<int64_t>((*texts)[row].size()) == rows_[row].most) {
        SampledAnswer& answer = (*out_)[rows_[row].answer];
        answer.text = std::move((*texts)[row]);
        answer.truncated = !ends;
        continue;
      }
      if (left < row) {
        (*texts)[left] = std::move((*texts)[row]);
        rows_[left] = std::move(rows_[row]);
        (*from)[left] = (*from)[row];
      }
      ++left;
    }
    texts->resize(left);
    rows_.resize(left);
    from->resize(left);
  }

  TokenModel& model_;
  const absl::Span<const Question> questions_;
  const AnswerOptions& options_;
  const std::vector<int64_t> ends_;
  std::vector<size_t> first_;  // each question's first place in out_
  std::vector<Row> rows_;      // of the texts that go on; none before the first
  std::vector<SampledAnswer>* out_ = nullptr;
};

// Asks whether all are done before each forward that goes through it.
class Gate final : public UnitRunner {
 public:
  struct Stopped {};  // is thrown

  Gate(const std::function<bool(bool done)>& all_done, UnitRunner* runner)
      : all_done_(all_done), runner_(*runner) {}

  at::Tensor Run(int unit, const at::Tensor& input, const Body& body) override {
    if (unit <= last_ && all_done_(false)) throw Stopped();
    last_ = unit;
    return runner_.Run(unit, input, body);
  }

 private:
  const std::function<bool(bool done)>& all_done_;
  UnitRunner& runner_;
  int last_ = std::numeric_limits<int>::max();  // unit
};

}  // namespace

absl::StatusOr<std::vector<SampledAnswer>> SampleAnswers(
    TokenModel* model, absl::Span<const Question> questions,
    const AnswerOptions& options,
    const std::function<bool(bool done)>& all_done, UnitRunner& runner) {
  const at::NoGradGuard no_gradients;
  std::vector<SampledAnswer> answers;
  Gate gate(all_done, &runner);
  while (!questions.empty()) {
    const size_t count = AtOnce(*model, questions, options);
    try {
      CAPSTAN_RETURN_IF_ERROR(
          Sampling(model, questions.first(count), options).Run(gate, &answers));
    } catch (const Gate::Stopped&) {
      return absl::CancelledError("sampling was stopped");
    }
    questions.remove_prefix(count);
  }
  return answers;
}

void RunIdleForward(TokenModel* model, UnitRunner& runner) {
  const at::NoGradGuard no_gradients;
  TokenInput input;
  input.tokens = at::zeros({1, 1}, at::kLong);
  model->LastLogits(input, runner);
}

void AwaitOthers(TokenModel* model,
                 const std::function<bool(bool done)>& all_done,
                 UnitRunner& runner) {
  while (!all_done(true)) RunIdleForward(model, runner);
}

}  // namespace capstan::grpo
