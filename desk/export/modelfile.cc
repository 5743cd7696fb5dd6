// SPDX-License-Identifier: Apache-2.0
#include "desk/export/modelfile.h"

#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "plugins/sdk/chat_template.h"

namespace capstan {
namespace {

// Formats of ChatTemplate as Go's templates, which Ollama fills in. What it
// begins with is the tokenizer's begin token, which Ollama adds.
const char* GoTemplate(const std::string& format) {
  static const auto* const templates = new std::map<std::string, const char*>{
      {"chatml",
       "{{ range .Messages }}<|im_start|>{{ .Role }}\n"
       "{{ .Content }}<|im_end|>\n"
       "{{ end }}<|im_start|>assistant\n"},
      {"llama3",
       "{{ range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n"
       "\n"
       "{{ .Content }}<|eot_id|>{{ end }}"
       "<|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"gemma",
       // A system message is the begin of the first turn.
       "{{ $first := \"\" }}{{ range .Messages }}"
       "{{ if eq .Role \"system\" }}{{ $first = .Content }}{{ else }}"
       "<start_of_turn>"
       "{{ if eq .Role \"assistant\" }}model{{ else }}user{{ end }}\n"
       "{{ if $first }}{{ $first }}\n\n{{ $first = \"\" }}{{ end }}"
       "{{ .Content }}<end_of_turn>\n"
       "{{ end }}{{ end }}<start_of_turn>model\n"},
  };
  const auto found = templates->find(format);
  return found == templates->end() ? nullptr : found->second;
}

}  // namespace

std::string ModelfileText(const std::string& name, const Tokenizer& tokenizer) {
  std::string text = absl::StrCat("FROM ./", name, "\n");
  const absl::StatusOr<std::unique_ptr<ChatTemplate>> chat =
      ChatTemplate::Recognise(tokenizer);
  if (!chat.ok()) return text;
  // SmolLM 2's is ChatML with a system message of its own.
  const bool smollm2 = (*chat)->name() == "smollm2";
  const char* const go = GoTemplate(smollm2 ? "chatml" : (*chat)->name());
  if (go == nullptr) return text;
  absl::StrAppend(&text, "TEMPLATE \"\"\"", go, "\"\"\"\n", "PARAMETER stop \"",
                  (*chat)->end_of_turn(), "\"\n");
  if (smollm2) {
    absl::StrAppend(&text,
                    "SYSTEM You are a helpful AI assistant named SmolLM, "
                    "trained by Hugging Face\n");
  }
  return text;
}

}  // namespace capstan
