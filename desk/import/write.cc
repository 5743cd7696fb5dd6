// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "desk/import/draft.h"
#include "trainer/metrics/console.h"

namespace capstan::import {
namespace {

// A config's parts, in the order in which they are read best.
constexpr absl::string_view kOrder[] = {
    "complete",           "model",     "adapter",    "add_tokens",
    "add_special_tokens", "objective", "train_data", "eval_data",
    "eval_sets",          "strategy",  "precision",  "optimizer",
    "schedule",           "batch",     "train",      "launch"};
// Of each Effect.
constexpr const char* kMarks[] = {"ok      ", "default ", "", "differs ",
                                  "lost    "};
constexpr size_t kIndent = 10;  // of what stands below a row

// One line, of printable characters.
std::string Plain(const std::string& text, size_t most) {
  std::string plain = absl::StrReplaceAll(absl::Utf8SafeCEscape(text),
                                          {{"\\\"", "\""}, {"\\'", "'"}});
  if (plain.size() > most) plain = plain.substr(0, most - 2) + "..";
  return plain;
}

std::string CommentOf(const Field& field) {
  return field.origin.empty()
             ? ""
             : absl::StrCat("  # ", Plain(field.origin, 70),
                            field.by_default ? " by default" : "");
}

// Fields of one part, as "a.b.c" with the part taken off, with braces where
// messages begin and end.
std::string Body(const std::vector<std::pair<std::string, Field>>& fields,
                 size_t indent) {
  std::string text;
  std::vector<std::string> open;
  auto close_to = [&](size_t depth) {
    while (open.size() > depth) {
      open.pop_back();
      absl::StrAppend(&text, std::string(indent + 2 * open.size(), ' '), "}\n");
    }
  };
  for (const auto& [path, field] : fields) {
    const std::vector<std::string> parts = absl::StrSplit(path, '.');
    size_t same = 0;
    while (same < open.size() && same + 1 < parts.size() &&
           open[same] == parts[same]) {
      ++same;
    }
    close_to(same);
    while (open.size() + 1 < parts.size()) {
      // "source#1": a repeated message; "[plugin/a|Config]": a dot.
      const std::string& name = parts[open.size()];
      absl::StrAppend(
          &text, std::string(indent + 2 * open.size(), ' '),
          absl::StrReplaceAll(name.substr(0, name.find('#')), {{"|", "."}}),
          " {\n");
      open.push_back(name);
    }
    absl::StrAppend(&text, std::string(indent + 2 * open.size(), ' '),
                    parts.back(), ": ", field.text, CommentOf(field), "\n");
  }
  close_to(0);
  return text;
}

std::string Part(absl::string_view name, const Draft& draft) {
  const auto slot = draft.fields().find(std::string(name));
  std::vector<std::pair<std::string, Field>> below, repeated;
  const std::string prefix = absl::StrCat(name, ".");
  for (const auto& [path, field] : draft.fields()) {
    if (absl::StartsWith(path, prefix)) {
      below.emplace_back(path.substr(prefix.size()), field);
    } else if (absl::StartsWith(path, absl::StrCat(name, "#"))) {
      repeated.emplace_back(path, field);
    }
  }
  if (!repeated.empty()) return Body(repeated, 0);
  if (slot == draft.fields().end()) {
    return below.empty() ? ""
                         : absl::StrCat(name, " {\n", Body(below, 2), "}\n");
  }
  if (!absl::StartsWith(slot->second.text, "capstan.")) {
    return absl::StrCat(name, ": ", slot->second.text, CommentOf(slot->second),
                        "\n");
  }
  const std::string type =
      absl::StrCat("[plugin/", slot->second.text, ".Config]");
  if (below.empty()) {
    return absl::StrCat(name, " { ", type, " {} }", CommentOf(slot->second),
                        "\n");
  }
  return absl::StrCat(name, " {", CommentOf(slot->second), "\n  ", type, " {\n",
                      Body(below, 4), "  }\n}\n");
}

// Ours for a fact of which a field has been made, or in place of a lost value.
std::string OursOf(const TableLine& line, const Draft& draft) {
  if (!line.ours.empty()) return line.ours;
  // Else it is one of several that a field was made of.
  const std::string word = absl::StrCat(" ", line.key, " ");
  for (const bool alone : {true, false}) {
    for (const auto& [path, field] : draft.fields()) {
      const std::string words = absl::StrCat(
          " ", absl::StrReplaceAll(field.origin, {{",", " "}, {":", " "}}),
          " ");
      if (path[0] != '@' &&
          (alone ? field.origin == line.key : absl::StrContains(words, word))) {
        return absl::StrCat(path, ": ", field.text);
      }
    }
  }
  return "";
}

std::string Pad(std::string text, size_t column) {
  text.resize(std::max(text.size(), column), ' ');
  return text + " ";
}

}  // namespace

std::string ConfigText(const Draft& draft, const std::string& head) {
  std::string text = head;
  for (const TableLine& line : draft.table()) {
    if (line.effect != Effect::kLost && line.effect != Effect::kDiffers) {
      continue;
    }
    absl::StrAppend(&text, "# ", kMarks[static_cast<int>(line.effect)],
                    Plain(line.key, 60), ": ", Plain(line.value, 60), ": ",
                    Plain(line.note, 200), "\n");
  }
  for (const absl::string_view name : kOrder) {
    absl::StrAppend(&text, Part(name, draft));
  }
  return text;
}

std::string TableText(const Draft& draft, size_t columns) {
  // With the mark's 8 they leave room for our field.
  const size_t more = columns > 80 ? std::min<size_t>(columns - 80, 120) : 0;
  const size_t key_column = 28 + more / 6, value_column = 12 + more / 4;
  std::string text = absl::StrCat("        ", Pad("key", key_column),
                                  Pad("value", value_column), "ours\n");
  for (const Effect effect :
       {Effect::kMapped, Effect::kDefault, Effect::kDiffers, Effect::kLost}) {
    for (const TableLine& line : draft.table()) {
      if (line.effect != effect) continue;
      std::string row = absl::StrCat(kMarks[static_cast<int>(effect)],
                                     Pad(Plain(line.key, 60), key_column),
                                     Pad(Plain(line.value, 60), value_column));
      const std::string ours = Plain(OursOf(line, draft), 60);
      // A default that nothing was made of says nothing.
      if (effect == Effect::kDefault && ours.empty()) continue;
      if (row.size() + ours.size() > columns) {
        absl::StripTrailingAsciiWhitespace(&row);
        absl::StrAppend(&row, "\n", std::string(kIndent, ' '));
      }
      absl::StrAppend(&row, ours);
      absl::StripTrailingAsciiWhitespace(&row);
      absl::StrAppend(&text, row, "\n",
                      WrappedText(Plain(line.note, 200), kIndent, columns));
    }
  }
  std::vector<std::string> others;
  for (const TableLine& line : draft.table()) {
    if (line.effect != Effect::kNothing) continue;
    others.push_back(Plain(line.key, 60));
    if (line.note.empty()) continue;
    absl::StrAppend(&others.back(), " (", Plain(line.note, 90), ")");
  }
  if (!others.empty()) {
    absl::StrAppend(&text, "unset, or without effect on what is trained:\n",
                    WrappedText(absl::StrJoin(others, ", "), kIndent, columns));
  }
  return text;
}

}  // namespace capstan::import
