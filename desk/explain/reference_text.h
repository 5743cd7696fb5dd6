// SPDX-License-Identifier: Apache-2.0
//
// The reference as text: for a terminal, as docs/settings.md, for machines.
#ifndef CAPSTAN_DESK_EXPLAIN_REFERENCE_TEXT_H_
#define CAPSTAN_DESK_EXPLAIN_REFERENCE_TEXT_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "desk/explain/reference.h"

namespace capstan {

// About a field ("train.eval_every", "optimizer.learning_rate": of each plugin
// that has it), a message ("train"), a slot ("strategy"), a plugin
// ("capstan.fsdp", "fsdp") or another trainer's name ("num_train_epochs").
// NOT_FOUND names the nearest.
absl::StatusOr<std::string> HelpOn(const std::string& topic,
                                   const Reference& reference);

// docs/settings.md: all fields.
std::string SettingsMarkdown(const Reference& reference);

// docs/llms.txt (llmstxt.org), for language models: the trainer on one page.
std::string LlmsText(const Reference& reference);

// What may follow --set: "train.max_steps=", "schedule.kind=COSINE",
// "strategy=capstan.ddp".
std::vector<std::string> SetWords(const Reference& reference);

// A JSON schema (draft 2020-12) of a run's config with its plugins.
nlohmann::ordered_json ConfigSchema(const Reference& reference);

}  // namespace capstan

#endif  // CAPSTAN_DESK_EXPLAIN_REFERENCE_TEXT_H_
