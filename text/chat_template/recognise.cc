// SPDX-License-Identifier: Apache-2.0
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "plugins/sdk/chat_template.h"
#include "text/chat_template/jinja_text.h"
#include "text/chat_template/style.h"

namespace capstan {
namespace {

std::string TextOf(const Tokenizer& tokenizer, int64_t id) {
  return id < 0 ? "" : tokenizer.Decode({id});
}

bool IsSpelling(const ChatStyle& style, const std::string& normal) {
  if (NormalJinja(style.jinja, style.bos, "") == normal) return true;
  for (const std::string& other : style.other_jinja) {
    if (NormalJinja(other, style.bos, "") == normal) return true;
  }
  return false;
}

// The template whose turns the text seems to write, for the error.
std::string Alike(const std::string& jinja, const Tokenizer& tokenizer) {
  if (absl::StrContains(jinja, "named SmolLM")) return "smollm2";
  if (absl::StrContains(jinja, "<|im_start|>")) return "chatml";
  if (absl::StrContains(jinja, "<start_of_turn>")) return "gemma";
  if (absl::StrContains(jinja, "<|start_header_id|>")) {
    return tokenizer.IdOf("<|startoftext|>").has_value() ? "llada" : "llama3";
  }
  return "";
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Recognise(
    const Tokenizer& tokenizer) {
  const std::string jinja = tokenizer.chat_template();
  const std::string names = absl::StrJoin(Names(), ", ");
  if (jinja.empty()) {
    return absl::NotFoundError(
        absl::StrCat("the tokenizer has no chat template: set one of ", names,
                     ", for instance chat_template: \"chatml\""));
  }
  const Tokenizer::SpecialIds ids = tokenizer.special_ids();
  const std::string normal = NormalJinja(jinja, TextOf(tokenizer, ids.bos),
                                         TextOf(tokenizer, ids.eos));
  for (const ChatStyle& style : ChatStyles()) {
    if (IsSpelling(style, normal)) return Named(style.name);
  }
  const std::string alike = Alike(jinja, tokenizer);
  return absl::UnimplementedError(absl::StrCat(
      "the tokenizer's chat template is none that is known (", names, "): ",
      alike.empty()
          ? std::string("set the one to train with, for instance "
                        "chat_template: \"chatml\"")
          : absl::StrCat("it writes turns as ", alike,
                         " does, and something else besides; to train with "
                         "that one, set chat_template: \"",
                         alike, "\"")));
}

}  // namespace capstan
