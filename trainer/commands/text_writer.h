// SPDX-License-Identifier: Apache-2.0
//
// Shows a text on standard output as a model writes it, with what comes before
// it.
#ifndef CAPSTAN_TRAINER_COMMANDS_TEXT_WRITER_H_
#define CAPSTAN_TRAINER_COMMANDS_TEXT_WRITER_H_

#include <string>

#include "absl/status/status.h"
#include "inference/decode/prompt.h"
#include "inference/decode/texts.h"
#include "plugins/sdk/objective.h"

namespace capstan {

// `sample` is the writer's with the text's seed.
absl::Status WriteInOrder(const Task& task, const Writer& writer,
                          SampleOptions sample);
// `picture` is a file for an UnmaskingPicture; empty: none.
absl::Status WriteInAnyOrder(const Task& task, const Writer& writer,
                             SampleOptions sample, const std::string& picture);
// The best texts of a prompt, which are known only when all are.
absl::Status ShowBest(const Task& task, const Writer& writer);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_COMMANDS_TEXT_WRITER_H_
