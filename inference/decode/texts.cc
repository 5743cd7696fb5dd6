// SPDX-License-Identifier: Apache-2.0
#include "inference/decode/texts.h"

#include <algorithm>
#include <utility>

#include "base/files.h"
#include "base/status.h"
#include "plugins/sdk/lib/generation_config.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/token_model.h"

namespace capstan {
namespace {

// Whether the texts of tasks have come to a stop string, as they grow.
class StopCheck {
 public:
  explicit StopCheck(const Writer& writer) : writer_(writer) {}
  bool Ended(size_t row, absl::Span<const int64_t> text) {
    if (writer_.stops.empty()) return false;
    if (row >= written_.size()) written_.resize(row + 1);
    written_[row] += writer_.generator.tokenizer->Decode(text.last(1));
    return writer_.stops.EndIn(written_[row]);
  }

 private:
  const Writer& writer_;
  std::vector<std::string> written_;  // of each row
};

}  // namespace

std::vector<int64_t> StopsOf(const Task& task, const Generator& generator) {
  std::vector<int64_t> stops = task.stops;
  const TokenModel* const model = generator.model->token_model();
  if (model == nullptr) return stops;
  for (const int64_t end : EndTokensOf(*model)) stops.push_back(end);
  return stops;
}

std::string TextOf(const Task& task, const Writer& writer,
                   const std::vector<int64_t>& all) {
  const absl::Span<const int64_t> text =
      absl::MakeConstSpan(all).subspan(task.ids.size());
  const std::vector<int64_t> stops = StopsOf(task, writer.generator);
  const auto end =
      std::find_first_of(text.begin(), text.end(), stops.begin(), stops.end());
  std::string written =
      writer.generator.tokenizer->Decode(text.first(end - text.begin()));
  written.resize(writer.stops.EndOf(written));
  return written;
}

absl::StatusOr<Texts> SearchTexts(const Task& task, const Writer& writer) {
  auto* const searcher =
      dynamic_cast<BeamSearcher*>(writer.generator.objective.get());
  if (searcher == nullptr) {
    return FieldError("--beams",
                      "needs an objective that writes from left to right");
  }
  SampleOptions sample = writer.sample;
  sample.stop_tokens = task.stops;
  // Beams change places: each text is decoded anew.
  sample.ended = [&](absl::Span<const int64_t> text) {
    StopCheck watch(writer);
    bool ended = false;
    for (size_t i = task.ids.size(); i < text.size() && !ended; ++i) {
      ended = watch.Ended(0, text.subspan(i, 1));
    }
    return ended;
  };
  PlainRunner runner;
  CAPSTAN_ASSIGN_OR_RETURN(
      std::vector<Beam> beams,
      searcher->SearchBeams(*writer.generator.model, task.ids, sample,
                            writer.beams, runner));
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  Texts texts;
  for (Beam& beam : beams) texts.push_back(std::move(beam.text));
  texts.resize(std::min(texts.size(), static_cast<size_t>(writer.sequences)));
  return texts;
}

absl::StatusOr<Texts> SampleAll(const Generator& generator,
                                const std::vector<BatchPrompt>& prompts,
                                SampleOptions sample,
                                const Objective::Ended& ended) {
  if (prompts.size() > 1) {
    PlainRunner runner;
    absl::StatusOr<Texts> texts = generator.objective->SampleBatch(
        *generator.model, prompts, sample, ended, runner);
    if (!absl::IsUnimplemented(texts.status())) {
      CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
      return texts;
    }
  }
  Texts texts;
  for (const BatchPrompt& prompt : prompts) {
    sample.seed = prompt.seed;
    sample.stop_tokens = prompt.stop_tokens;
    sample.ended = [&](absl::Span<const int64_t> text) {
      return ended(texts.size(), text);
    };
    CAPSTAN_ASSIGN_OR_RETURN(std::vector<int64_t> text,
                             generator.Sample(prompt.ids, sample));
    texts.push_back(std::move(text));
  }
  return texts;
}

absl::StatusOr<Texts> SampleTexts(absl::Span<const Task> tasks,
                                  uint64_t first_seed, const Writer& writer) {
  std::vector<BatchPrompt> prompts;
  for (const Task& task : tasks) {
    prompts.push_back({task.ids, first_seed + prompts.size(), task.stops});
  }
  StopCheck watch(writer);
  return SampleAll(writer.generator, prompts, writer.sample,
                   [&](size_t row, absl::Span<const int64_t> text) {
                     return watch.Ended(row, text);
                   });
}

absl::StatusOr<StopStrings> StopStringsOf(const std::vector<std::string>& given,
                                          Model& model) {
  const TokenModel* const tokens = model.token_model();
  if (!given.empty() || tokens == nullptr) {
    return StopStrings(given);
  }
  CAPSTAN_ASSIGN_OR_RETURN(GenerationConfig config,
                           GenerationConfigOf(*tokens));
  return StopStrings(std::move(config.stop_strings));
}

}  // namespace capstan
