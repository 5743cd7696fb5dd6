// SPDX-License-Identifier: Apache-2.0
//
// Has a model write texts, one or several at once.
#ifndef CAPSTAN_INFERENCE_DECODE_TEXTS_H_
#define CAPSTAN_INFERENCE_DECODE_TEXTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "inference/decode/prompt.h"
#include "inference/decode/stop_strings.h"
#include "inference/load/generator.h"
#include "plugins/sdk/model.h"
#include "plugins/sdk/objective.h"
#include "plugins/sdk/token_model.h"

namespace capstan {

// Prompt and text, in tokens.
using Texts = std::vector<std::vector<int64_t>>;

// The most tokens that a text of a model that writes in order may have, its
// prompt among them: one more than the model has positions, as the last one
// needs none. Other samplers keep to the positions themselves.
int64_t MostTokens(const TokenModel& model);

// What makes texts, and how.
struct Writer {
  const Generator& generator;
  SampleOptions sample;
  StopStrings stops;
  BeamSettings beams;
  int64_t sequences = 1;  // texts a prompt

  bool searches() const { return beams.beams > 1; }
};

// `given` or, if there are none, the model's own (generation_config.json).
absl::StatusOr<StopStrings> StopStringsOf(const std::vector<std::string>& given,
                                          Model& model);
// All tokens that end the task's text.
std::vector<int64_t> StopsOf(const Task& task, const Generator& generator);

// RESOURCE_EXHAUSTED if a GPU can't hold the keys and values of so many texts
// at once, of up to `tokens` tokens: to be known before the first text, which
// may be short, is written.
absl::Status CheckCache(const TokenModel& model, int64_t texts, int64_t tokens);

// Whether `text`, prompt and text, has MostTokens, and ended for that alone.
bool IsCutOff(const Task& task, const Writer& writer,
              absl::Span<const int64_t> text);

// The best texts of a prompt, as many as it gets.
absl::StatusOr<Texts> SearchTexts(const Task& task, const Writer& writer);
// Texts of the prompts: at once if the objective and the model can, which
// changes no text. `ended` is asked after each token of a text (its number, and
// prompt and text so far) whether it ends there.
absl::StatusOr<Texts> SampleAll(Model& model, Objective& objective,
                                const std::vector<BatchPrompt>& prompts,
                                SampleOptions sample,
                                const Objective::Ended& ended,
                                UnitRunner& runner);
// Those of tasks, each with the next seed, up to MostTokens.
absl::StatusOr<Texts> SampleTexts(absl::Span<const Task> tasks,
                                  uint64_t first_seed, const Writer& writer);

// What a model wrote after the prompt, up to the first end of text or stop.
std::string TextOf(const Task& task, const Writer& writer,
                   const std::vector<int64_t>& all);

}  // namespace capstan

#endif  // CAPSTAN_INFERENCE_DECODE_TEXTS_H_
