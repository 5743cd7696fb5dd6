// SPDX-License-Identifier: Apache-2.0
//
// score: what a reward model says of texts, a line out for each line in. It
// answers as soon as a line is there, so that it serves as the program of a
// reward (docs/grpo.md).
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/generate/model_flags.h"
#include "desk/score/scored_text.h"
#include "desk/score/waiting_lines.h"
#include "inference/load/generator.h"
#include "plugins/sdk/lib/field_check.h"
#include "plugins/sdk/token_model.h"
#include "trainer/commands/command.h"
#include "trainer/session/set_up.h"

namespace capstan {
namespace {

struct ScoreOptions : SamplingOptions {  // without the sampling
  std::string input = "-";
  std::string output = "-";
  int64_t batch_size = 8;  // texts of a forward
  int64_t threads = 0;     // 0: one a core
  bool gpu = false;        // not on a CPU
};

absl::Status CheckOptions(const ScoreOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(
      CheckField(options.batch_size <= kMostBatch, "--batch_size",
                 absl::StrCat("at most ", kMostBatch), options.batch_size));
  if (options.output != "-" && PathExists(FromCaller(options.output))) {
    return FieldError(
        "--output",
        absl::StrCat(options.output, " is there already; name another file"));
  }
  return absl::OkStatus();
}

// What is said of a line: its score, or why it has none.
std::string OutputRow(const absl::StatusOr<double>& score) {
  nlohmann::ordered_json row;
  if (score.ok()) {
    row["reward"] = *score;
  } else {
    row["reward"] = nullptr;
    row["reason"] = std::string(score.status().message());
  }
  return absl::StrCat(JsonText(row), "\n");
}

class Scorer {
 public:
  Scorer(const ScoreOptions& options, const Generator& generator)
      : model_(*generator.model->token_model()),
        device_(generator.group->device()),
        pad_(generator.tokenizer->special_ids().pad),
        texts_(options.Tasks(), *generator.tokenizer,
               ReadingOf(generator.train_data)) {}

  // What is longer than the model's positions, too, is cut at its end, as
  // without a run it isn't known how the model's training cut texts.
  absl::StatusOr<std::vector<int64_t>> TokensOf(absl::string_view line) {
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<int64_t> ids, texts_.TokensOf(line));
    const auto length = static_cast<int64_t>(ids.size());
    ids.resize(std::min(length, model_.max_positions()));
    return ids;
  }

  // Padding changes no score, as a token sees only those before it.
  std::vector<double> ScoresOf(
      const std::vector<std::vector<int64_t>>& texts) const {
    const auto rows = static_cast<int64_t>(texts.size());
    size_t longest = 0;
    for (const auto& ids : texts) longest = std::max(longest, ids.size());
    const at::Tensor tokens =
        at::zeros({rows, static_cast<int64_t>(longest)}, at::kLong);
    at::Tensor last = at::zeros({rows}, at::kLong);
    for (int64_t r = 0; r < rows; ++r) {
      const std::vector<int64_t>& ids = texts[r];
      std::copy(ids.begin(), ids.end(),
                tokens.mutable_data_ptr<int64_t>() +
                    r * static_cast<int64_t>(longest));
      // As capstan.reward reads it: at the last token that isn't a pad.
      auto at = static_cast<int64_t>(ids.size()) - 1;
      while (at > 0 && ids[at] == pad_) --at;
      last.mutable_data_ptr<int64_t>()[r] = at;
    }
    TokenInput input;
    input.tokens = tokens.to(device_);
    PlainRunner runner;
    const at::Tensor scores = model_.text_scores()
                                  ->Scores(input, last, runner)
                                  .to(at::kCPU, at::kDouble)
                                  .contiguous();
    const double* const first = scores.const_data_ptr<double>();
    return {first, first + rows};
  }

 private:
  TokenModel& model_;
  const at::Device device_;
  const int64_t pad_;
  ScoredTexts texts_;
};

// Where scores go. A file of its own is there once all are in it.
class Output {
 public:
  static absl::StatusOr<Output> Open(const std::string& path) {
    Output output;
    if (path == "-") return output;
    CAPSTAN_ASSIGN_OR_RETURN(output.file_,
                             HiddenFile::Create(FromCaller(path)));
    return output;
  }
  absl::Status Write(const std::string& text) {
    return file_ != nullptr ? file_->Write(text)
                            : WriteAll(STDOUT_FILENO, text, "standard output");
  }
  absl::Status Close() {
    return file_ != nullptr ? file_->Close() : absl::OkStatus();
  }

 private:
  std::unique_ptr<HiddenFile> file_;  // null: standard output
};

// Scores all lines of `input`; errors name them as those of `name`.
absl::Status ScoreLines(const ScoreOptions& options, Scorer& scorer, int input,
                        const std::string& name, Output* output) {
  WaitingLines lines(input);
  for (int64_t number = 0;;) {
    const absl::StatusOr<std::vector<std::string>> now =
        lines.Next(static_cast<size_t>(options.batch_size));
    if (!now.ok()) return Annotate(now.status(), name);
    if (now->empty()) return absl::OkStatus();
    const auto place = [&name, number](size_t i) {
      return absl::StrCat(name, ":", number + static_cast<int64_t>(i) + 1);
    };
    std::vector<std::vector<int64_t>> texts;
    std::vector<size_t> of_line;  // of each text
    std::vector<absl::StatusOr<double>> said(now->size(), 0.0);
    for (size_t i = 0; i < now->size(); ++i) {
      absl::StatusOr<std::vector<int64_t>> ids = scorer.TokensOf((*now)[i]);
      if (absl::IsOutOfRange(ids.status())) {
        said[i] = ids.status();
        continue;
      }
      if (!ids.ok()) return Annotate(ids.status(), place(i));
      texts.push_back(*std::move(ids));
      of_line.push_back(i);
    }
    std::vector<double> scores;
    if (!texts.empty()) scores = scorer.ScoresOf(texts);
    for (size_t t = 0; t < scores.size(); ++t) {
      if (!std::isfinite(scores[t])) {
        return absl::OutOfRangeError(
            absl::StrCat(place(of_line[t]), ": the model's score is ",
                         scores[t], ", which is no reward"));
      }
      said[of_line[t]] = scores[t];
    }
    number += static_cast<int64_t>(now->size());
    std::string text;
    for (const absl::StatusOr<double>& one : said) text += OutputRow(one);
    // Weights may lie in files that change.
    CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
    CAPSTAN_RETURN_IF_ERROR(output->Write(text));
  }
}

absl::StatusOr<int> Score(const ScoreOptions& options) {
  CAPSTAN_RETURN_IF_ERROR(CheckOptions(options));
  // A text's score doesn't depend on those beside it.
  ComputeDeterministically();
  at::set_num_threads(options.threads > 0 ? static_cast<int>(options.threads)
                                          : AvailableCores());
  const at::NoGradGuard no_grad;
  CAPSTAN_ASSIGN_OR_RETURN(const Generator generator, LoadToWrite(options));
  if (generator.model->token_model()->text_scores() == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("--model=", options.model,
                     " writes texts and has no head of scores: name one that "
                     "capstan.reward has trained (docs/preference.md)"));
  }
  if (generator.tokenizer == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("--model=", options.model, " has no tokenizer (",
                     generator.tokenizer_error.message(), ")"));
  }
  if (options.gpu && !generator.group->device().is_cuda()) {
    return FieldError("--gpu", "there is none that can be used here");
  }
  Scorer scorer(options, generator);
  int input = STDIN_FILENO;
  std::string name = "standard input";
  if (options.input != "-") {
    name = FromCaller(options.input);
    input = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (input < 0) return absl::ErrnoToStatus(errno, "--input=" + name);
  }
  absl::StatusOr<Output> output = Output::Open(options.output);
  absl::Status status = output.status();
  if (status.ok()) {
    status = ScoreLines(options, scorer, input, name, &*output);
  }
  if (input != STDIN_FILENO) close(input);
  if (status.ok()) status = output->Close();
  CAPSTAN_RETURN_IF_ERROR(status);
  return 0;
}

void AddFlags(Flags& flags, ScoreOptions* options) {
  AddModelFlag(flags, &options->model);
  flags
      .Add("--input", &options->input,
           "What to score, an object a line: {\"prompt\": .., \"completion\": "
           "..} of texts or lists of messages, {\"messages\": [..]}, "
           "{\"text\": ..}, or what the program of a reward gets; - is "
           "standard input")
      .Type("FILE")
      .ShowDefault();
  flags
      .Add("--output", &options->output,
           "A new file for the scores, {\"reward\": ..} for each line; - is "
           "standard output")
      .Type("FILE")
      .ShowDefault();
  flags
      .Add("--batch_size", &options->batch_size,
           "The most texts scored at once; changes no score")
      .Positive()
      .ShowDefault();
  flags
      .Add("--threads", &options->threads,
           "Of this process; default: one a core")
      .Positive();
  flags.Add("--gpu", &options->gpu,
            "It is an error if there is no GPU to compute on");
  AddAdapterFlags(flags, &options->adapter);
  AddWeightsFlag(flags, &options->weights);
  AddTemplateFlags(flags, options);
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<ScoreOptions> score("score", AddFlags, Score);

}  // namespace
}  // namespace capstan
