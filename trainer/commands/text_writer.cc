// SPDX-License-Identifier: Apache-2.0
#include "trainer/commands/text_writer.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/status.h"
#include "inference/load/generator.h"
#include "plugins/sdk/token_model.h"
#include "trainer/commands/text_view.h"
#include "trainer/commands/unmasking_picture.h"

namespace capstan {
namespace {

// Printed before the text.
std::string Heading(const Prompt& prompt) {
  return prompt.messages.empty()
             ? prompt.text
             : absl::StrCat("> ", prompt.messages.back().content, "\n");
}

}  // namespace

absl::Status WriteInOrder(const Task& task, const Writer& writer,
                          SampleOptions sample) {
  StoppedText stopped(writer.stops);
  const bool answer = !task.prompt->messages.empty();
  const std::vector<int64_t> stops = StopsOf(task, writer.generator);
  std::cout << Heading(*task.prompt) << std::flush;
  sample.on_token = [&](int64_t token) {
    // End-of-turn tokens aren't part of the answer.
    if (answer && std::find(stops.begin(), stops.end(), token) != stops.end()) {
      return;
    }
    std::cout << stopped.Add(writer.generator.tokenizer->Decode(
                     absl::MakeSpan(&token, 1)))
              << std::flush;
  };
  sample.ended = [&](absl::Span<const int64_t>) { return stopped.ended(); };
  CAPSTAN_RETURN_IF_ERROR(writer.generator.Sample(task.ids, sample).status());
  std::cout << stopped.Finish() << std::endl;
  return absl::OkStatus();
}

absl::Status WriteInAnyOrder(const Task& task, const Writer& writer,
                             SampleOptions sample,
                             const std::string& picture_file) {
  const Generator& generator = writer.generator;
  const TokenModel* const model = generator.model->token_model();
  MaskedTextView view(STDOUT_FILENO, generator.tokenizer, model->mask_token(),
                      StopsOf(task, generator), Heading(*task.prompt),
                      writer.stops);
  UnmaskingPicture picture(model->mask_token(), task.ids.size());
  view.Show({});
  sample.on_text = [&](absl::Span<const int64_t> text) {
    view.Show(text.subspan(task.ids.size()));
    picture.Note(text);
  };
  const absl::StatusOr<std::vector<int64_t>> text =
      generator.Sample(task.ids, sample);
  view.Finish(text.ok() ? absl::MakeConstSpan(*text).subspan(task.ids.size())
                        : absl::Span<const int64_t>());
  CAPSTAN_RETURN_IF_ERROR(text.status());
  if (picture_file.empty()) return absl::OkStatus();
  return WriteWholeFile(picture_file, picture.Svg(*text, *generator.tokenizer));
}

absl::Status ShowBest(const Task& task, const Writer& writer) {
  CAPSTAN_ASSIGN_OR_RETURN(const Texts texts, SearchTexts(task, writer));
  for (size_t i = 0; i < texts.size(); ++i) {
    if (i > 0) std::cout << std::endl;
    TextStream stream;
    std::cout << Heading(*task.prompt)
              << stream.Add(TextOf(task, writer, texts[i])) << stream.Finish()
              << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace capstan
