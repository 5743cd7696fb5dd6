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

// What is said of a line.
std::string OutputRow(double score) {
  return absl::StrCat(JsonText(nlohmann::ordered_json{{"reward", score}}),
                      "\n");
}

class Scorer {
 public:
  Scorer(const ScoreOptions& options, const Generator& generator)
      : settings_(options.Tasks()),
        model_(*generator.model->token_model()),
        device_(generator.group->device()),
        pad_(generator.tokenizer->special_ids().pad),
        texts_(settings_, *generator.tokenizer) {}

  // What is longer than the model's positions is cut at its end; how the
  // model's training cut texts isn't known here.
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
  const TaskSettings settings_;
  TokenModel& model_;
  const at::Device device_;
  const int64_t pad_;
  ScoredTexts texts_;
};

// Scores all lines of `input`; errors name them as those of `name`.
absl::Status ScoreLines(const ScoreOptions& options, Scorer& scorer, int input,
                        const std::string& name, int output) {
  WaitingLines lines(input);
  for (int64_t number = 0;;) {
    const absl::StatusOr<std::vector<std::string>> now =
        lines.Next(static_cast<size_t>(options.batch_size));
    if (!now.ok()) return Annotate(now.status(), name);
    if (now->empty()) return absl::OkStatus();
    std::vector<std::vector<int64_t>> texts;
    std::vector<std::string> places;
    for (const std::string& line : *now) {
      ++number;
      places.push_back(absl::StrCat(name, ":", number));
      absl::StatusOr<std::vector<int64_t>> ids = scorer.TokensOf(line);
      if (!ids.ok()) return Annotate(ids.status(), places.back());
      texts.push_back(*std::move(ids));
    }
    if (texts.empty()) continue;
    std::string said;
    const std::vector<double> scores = scorer.ScoresOf(texts);
    for (size_t i = 0; i < scores.size(); ++i) {
      if (!std::isfinite(scores[i])) {
        return absl::OutOfRangeError(
            absl::StrCat(places[i], ": the model's score is ", scores[i],
                         ", which is no reward"));
      }
      said += OutputRow(scores[i]);
    }
    // Weights may lie in files that change.
    CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
    CAPSTAN_RETURN_IF_ERROR(
        WriteAll(output, said,
                 options.output == "-" ? "standard output" : options.output));
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
  Scorer scorer(options, generator);
  int input = STDIN_FILENO, output = STDOUT_FILENO;
  std::string name = "standard input";
  if (options.input != "-") {
    name = FromCaller(options.input);
    input = open(name.c_str(), O_RDONLY | O_CLOEXEC);
    if (input < 0) return absl::ErrnoToStatus(errno, "--input=" + name);
  }
  if (options.output != "-") {
    const std::string path = FromCaller(options.output);
    output = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (output < 0) return WriteError(path, errno);
  }
  const absl::Status status = ScoreLines(options, scorer, input, name, output);
  if (input != STDIN_FILENO) close(input);
  if (output != STDOUT_FILENO) close(output);
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
  AddAdapterFlags(flags, &options->adapter);
  AddWeightsFlag(flags, &options->weights);
  AddTemplateFlags(flags, options);
  AddPluginPath(flags, &options->plugin_path);
}

const RegisterFunction<ScoreOptions> score(
    92, "score", "Score texts with a reward model, also as a reward's program",
    AddFlags, Score);

}  // namespace
}  // namespace capstan
