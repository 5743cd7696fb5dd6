// SPDX-License-Identifier: Apache-2.0
//
// Rows of kind PREFERENCE.
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>

#include "absl/strings/string_view.h"
#include "base/status.h"
#include "datasets/chat/row_fields.h"

namespace capstan::chat {
namespace {

using simdjson::dom::element;
using simdjson::dom::object;

// The bytes with which both begin, in whole characters. A space before what
// differs belongs to that, as in TRL's extract_prompt.
size_t SharedBytes(absl::string_view a, absl::string_view b) {
  const size_t most = std::min(a.size(), b.size());
  size_t n =
      std::mismatch(a.begin(), a.begin() + most, b.begin()).first - a.begin();
  const auto inside = [](absl::string_view text, size_t i) {
    return i < text.size() && (text[i] & 0xc0) == 0x80;
  };
  while (n > 0 && (inside(a, n) || inside(b, n))) --n;
  return n > 0 && n < most && a[n - 1] == ' ' ? n - 1 : n;
}

size_t SharedTurns(const Row& a, const Row& b) {
  const size_t most = std::min(a.messages().size(), b.messages().size());
  size_t n = 0;
  while (n < most && Row::Same(a, b, n)) ++n;
  return n;
}

absl::Status NoPrompt() {
  return Bad(
      "has no \"prompt\", and its \"chosen\" and \"rejected\" don't begin "
      "alike");
}

absl::Status FillPreferredTexts(const object& from, bool has_prompt, Row* row,
                                Row* other) {
  row->is_text = other->is_text = true;
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "chosen", &row->completion));
  CAPSTAN_RETURN_IF_ERROR(CopyText(from, "rejected", &other->completion));
  if (has_prompt) {
    CAPSTAN_RETURN_IF_ERROR(CopyText(from, "prompt", &row->prompt));
  } else {
    const size_t shared = SharedBytes(row->completion, other->completion);
    if (shared == 0) return NoPrompt();
    row->prompt = row->completion.substr(0, shared);
    row->completion.erase(0, shared);
    other->completion.erase(0, shared);
  }
  other->prompt = row->prompt;
  return absl::OkStatus();
}

// The turns of `key`, a list of messages or the assistant's text.
absl::Status AddAnswer(const object& from, const char* key, Row* row) {
  element value;
  if (from.at_key(key).get(value) == simdjson::SUCCESS && value.is_string()) {
    return AddText(from, key, "assistant", row);
  }
  return AddTurns(from, key, kMessageKeys, row);
}

absl::Status FillPreferredTurns(const object& from, const element* prompt,
                                Row* row, Row* other) {
  size_t shared = 0;
  if (prompt == nullptr || prompt->is_string()) {
    // The prompt is what both begin with; a text beside that says it again.
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "chosen", kMessageKeys, row));
    CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "rejected", kMessageKeys, other));
    shared = SharedTurns(*row, *other);
    if (shared == 0 && prompt == nullptr) return NoPrompt();
  }
  if (shared == 0) {
    row->ClearMessages();
    other->ClearMessages();
    for (Row* each : {row, other}) {
      if (prompt->is_array()) {
        CAPSTAN_RETURN_IF_ERROR(AddTurns(from, "prompt", kMessageKeys, each));
      } else {
        CAPSTAN_RETURN_IF_ERROR(AddText(from, "prompt", "user", each));
      }
    }
    shared = row->messages().size();
    CAPSTAN_RETURN_IF_ERROR(AddAnswer(from, "chosen", row));
    CAPSTAN_RETURN_IF_ERROR(AddAnswer(from, "rejected", other));
  }
  row->prompt_messages = other->prompt_messages = shared;
  for (const Row* each : {row, other}) {
    if (each->messages().size() > shared) continue;
    return Bad("\"", each == row ? "chosen" : "rejected",
               "\" has no turn that the other hasn't");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FillPreference(const object& from, Row* row) {
  if (row->rejected == nullptr) row->rejected = std::make_unique<Row>();
  Row* const other = row->rejected.get();
  other->source = row->source;
  element prompt, chosen, rejected, margin;
  if (!Find(from, "chosen", &chosen)) return Missing("chosen");
  if (!Find(from, "rejected", &rejected)) return Missing("rejected");
  if (Find(from, "margin", &margin)) {
    if (margin.get(row->margin) != simdjson::SUCCESS) {
      return WrongType("margin", margin, "a number");
    }
    if (!std::isfinite(static_cast<float>(row->margin))) {
      return Bad("\"margin\" is beyond float32");
    }
  }
  const bool has_prompt = Find(from, "prompt", &prompt);
  if (has_prompt && !prompt.is_string() && !prompt.is_array()) {
    return WrongType("prompt", prompt, "a text or a list of messages");
  }
  if (chosen.is_string() && !(has_prompt && prompt.is_array())) {
    return FillPreferredTexts(from, has_prompt, row, other);
  }
  for (Row* each : {row, other}) {
    CAPSTAN_RETURN_IF_ERROR(AddContext(from, each));
  }
  return FillPreferredTurns(from, has_prompt ? &prompt : nullptr, row, other);
}

}  // namespace capstan::chat
