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

int64_t MostTokens(const TokenModel& model) {
  return model.max_positions() + 1;
}

bool IsCutOff(const Task& task, const Writer& writer,
              absl::Span<const int64_t> text) {
  const TokenModel& model = *writer.generator.model->token_model();
  if (!model.causal() ||
      static_cast<int64_t>(text.size()) < MostTokens(model)) {
    return false;
  }
  const std::vector<int64_t> stops = StopsOf(task, writer.generator);
  if (writer.sample.stop_at_eos &&
      std::find(stops.begin(), stops.end(), text.back()) != stops.end()) {
    return false;
  }
  return writer.stops.empty() ||
         !writer.stops.EndIn(
             writer.generator.tokenizer->Decode(text.subspan(task.ids.size())));
}

absl::Status CheckCache(const TokenModel& model, int64_t texts,
                        int64_t tokens) {
  // Others need none.
  if (!model.causal()) return absl::OkStatus();
  const absl::Status made =
      model.NewCache(texts, std::min(tokens, model.max_positions())).status();
  return absl::IsResourceExhausted(made) ? made : absl::OkStatus();
}

absl::StatusOr<Texts> SearchTexts(const Task& task, const Writer& writer) {
  SampleOptions sample = writer.sample;
  sample.stop_tokens = task.stops;
  if (!writer.stops.empty()) {
    // Beams change places: each text is decoded anew.
    sample.ended = [&](absl::Span<const int64_t> text) {
      return writer.stops.EndIn(
          writer.generator.tokenizer->Decode(text.subspan(task.ids.size())));
    };
  }
  PlainRunner runner;
  absl::StatusOr<std::vector<Beam>> beams =
      writer.generator.objective->SearchBeams(*writer.generator.model, task.ids,
                                              sample, writer.beams, runner);
  if (absl::IsUnimplemented(beams.status())) {
    return FieldError("--beams", beams.status().message());
  }
  CAPSTAN_RETURN_IF_ERROR(beams.status());
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  Texts texts;
  for (Beam& beam : *beams) texts.push_back(std::move(beam.text));
  texts.resize(std::min(texts.size(), static_cast<size_t>(writer.sequences)));
  return texts;
}

absl::StatusOr<Texts> SampleAll(Model& model, Objective& objective,
                                const std::vector<BatchPrompt>& prompts,
                                SampleOptions sample,
                                const Objective::Ended& ended,
                                UnitRunner& runner) {
  if (prompts.size() > 1) {
    absl::StatusOr<Texts> texts =
        objective.SampleBatch(model, prompts, sample, ended, runner);
    if (!absl::IsUnimplemented(texts.status())) {
      // Weights may lie in files that change.
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
    CAPSTAN_ASSIGN_OR_RETURN(
        std::vector<int64_t> text,
        objective.Sample(model, prompt.ids, sample, runner));
    CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
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
  std::vector<std::string> written(tasks.size());
  const TokenModel& model = *writer.generator.model->token_model();
  const auto ended = [&](size_t row, absl::Span<const int64_t> text) {
    if (static_cast<int64_t>(text.size()) >= MostTokens(model)) return true;
    if (writer.stops.empty()) return false;
    written[row] += writer.generator.tokenizer->Decode(text.last(1));
    return writer.stops.EndIn(written[row]);
  };
  PlainRunner runner;
  return SampleAll(*writer.generator.model, *writer.generator.objective,
                   prompts, writer.sample, ended, runner);
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
