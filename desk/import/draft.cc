// SPDX-License-Identifier: Apache-2.0
#include "desk/import/draft.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files.h"
#include "host/plugins/plugin_host.h"

namespace capstan::import {
namespace {

std::string Quoted(const std::string& text) {
  return absl::StrCat("\"", absl::Utf8SafeCEscape(text), "\"");
}

// "datasets[].path" of "datasets[3].path".
std::string Pattern(const std::string& key) {
  std::string pattern;
  bool inside = false;
  for (const char c : key) {
    if (c == ']') inside = false;
    if (!inside) pattern.push_back(absl::ascii_tolower(c));
    if (c == '[') inside = true;
  }
  return pattern;
}

bool Off(const Setting& setting) {
  const std::string value = absl::AsciiStrToLower(setting.value);
  double number = 1.0;
  return setting.is_null || value.empty() || value == "false" ||
         value == "no" || value == "none" || value == "null" || value == "[]" ||
         (absl::SimpleAtod(value, &number) && number == 0.0);
}

bool SameValue(const std::string& a, absl::string_view b) {
  double x = 0.0, y = 0.0;
  return absl::EqualsIgnoreCase(a, b) ||
         (absl::SimpleAtod(a, &x) && absl::SimpleAtod(b, &y) && x == y);
}

bool ReadFlag(absl::string_view text, bool* flag) {
  for (const char* const yes : {"true", "yes", "on", "1"}) {
    if (absl::EqualsIgnoreCase(text, yes)) return *flag = true;
  }
  *flag = false;
  for (const char* const no : {"false", "no", "off", "0"}) {
    if (absl::EqualsIgnoreCase(text, no)) return true;
  }
  return false;
}

struct Converted {
  enum { kText, kNothing, kLost, kWrong } kind = kText;
  std::string text;  // of kWrong: what is wrong
  bool differs = false;
};

Converted Number(const std::string& value, absl::string_view how) {
  // Python's 1_000 and +1.
  std::string plain = absl::StrReplaceAll(value, {{"_", ""}});
  absl::StripAsciiWhitespace(&plain);
  if (absl::StartsWith(plain, "+")) plain.erase(0, 1);
  double number = 0.0;
  if (!absl::SimpleAtod(plain, &number) || !std::isfinite(number)) {
    return {Converted::kWrong, "isn't a number"};
  }
  const bool integer = how != "number";
  if (integer && (number != std::floor(number) || std::abs(number) > 1e15)) {
    return {Converted::kWrong, "isn't a whole number"};
  }
  if (how == "integer" && number == -1) return {Converted::kNothing, ""};
  if (number < (how == "positive" ? 1 : 0)) {
    return {Converted::kWrong,
            how == "positive" ? "must be 1 or more" : "must be 0 or more"};
  }
  return {Converted::kText,
          integer ? absl::StrCat(static_cast<int64_t>(number)) : plain};
}

std::string ListText(const Setting& setting) {
  std::vector<std::string> items = setting.items;
  if (!setting.is_list) {
    items =
        absl::StrSplit(setting.value, absl::ByAnyChar(", "), absl::SkipEmpty());
  }
  for (std::string& item : items) item = Quoted(item);
  return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
}

Converted Convert(absl::string_view how, const Setting& setting) {
  const std::string& value = setting.value;
  if (how == "raw") return {Converted::kText, value};
  if (how == "text") return {Converted::kText, Quoted(value)};
  if (how == "list") return {Converted::kText, ListText(setting)};
  if (how == "number" || how == "integer" || how == "count" ||
      how == "positive") {
    return Number(value, how);
  }
  if (how == "flag") {
    bool flag = false;
    if (!ReadFlag(value, &flag)) {
      return {Converted::kWrong, "is neither true nor false"};
    }
    return {Converted::kText, flag ? "true" : "false"};
  }
  if (how == "lost") {
    return {Off(setting) ? Converted::kNothing : Converted::kLost, ""};
  }
  if (how.empty()) return {Converted::kNothing, ""};
  if (!setting.items.empty() && !absl::StrContains(how, '[')) {
    // All must be known; the first says what is written.
    Converted first{Converted::kNothing, ""};
    for (const std::string& item : setting.items) {
      const Converted made = Convert(how, {setting.key, item});
      if (made.kind == Converted::kLost || made.kind == Converted::kWrong) {
        return made;
      }
      if (first.kind == Converted::kNothing) first = made;
    }
    return first;
  }
  for (const absl::string_view pair : absl::StrSplit(how, ' ')) {
    const std::pair<absl::string_view, absl::string_view> sides =
        absl::StrSplit(pair, absl::MaxSplits('=', 1));
    if (sides.first != "*" && !SameValue(value, sides.first)) continue;
    if (sides.second == "-") return {Converted::kNothing, ""};
    if (sides.second == "!") return {Converted::kLost, ""};
    Converted made{Converted::kText,
                   sides.second == "*" ? value : std::string(sides.second)};
    made.differs = absl::StartsWith(made.text, "~");
    if (made.differs) made.text.erase(0, 1);
    return made;
  }
  return {Converted::kWrong, "is no value that is known here"};
}

// No name on the hub ends so.
bool IsDataFile(absl::string_view path) {
  for (const char* const ending : {".json", ".jsonl", ".parquet", ".csv",
                                   ".tsv", ".txt", ".gz", ".zst", ".arrow"}) {
    if (absl::EndsWithIgnoreCase(path, ending)) return true;
  }
  return false;
}

bool Matches(const Row& row, absl::string_view key, bool below) {
  for (absl::string_view name : absl::StrSplit(row.keys, ' ')) {
    if (absl::ConsumeSuffix(&name, "*") == below &&
        (below ? absl::StartsWithIgnoreCase(key, name)
               : absl::EqualsIgnoreCase(key, name))) {
      return true;
    }
  }
  return false;
}

std::vector<Row> ReadRows(absl::string_view text) {
  std::vector<std::string> lines;
  for (const absl::string_view line :
       absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    if (line[0] == ' ') {
      absl::StrAppend(&lines.back(), line.substr(1));
    } else if (line[0] != '#') {
      lines.emplace_back(line);
    }
  }
  std::vector<Row> rows;
  for (const std::string& line : lines) {
    std::vector<std::string> parts = absl::StrSplit(line, '|');
    for (std::string& part : parts) absl::StripAsciiWhitespace(&part);
    parts.resize(4);
    rows.push_back({parts[0], parts[1], parts[2], parts[3]});
  }
  return rows;
}

}  // namespace

const std::vector<Row>& RowsOf(const Table& table) {
  static auto* const read = new std::map<const char*, std::vector<Row>>;
  std::vector<Row>& rows = (*read)[table.text];
  if (rows.empty()) rows = ReadRows(table.text);
  return rows;
}

void Draft::Apply(const Peer& peer, const Setting& setting, bool by_default) {
  const std::string pattern = Pattern(setting.key);
  bool known = false;
  // Rows of the whole key, and only without one those of a folder of keys.
  for (const bool below : {false, true}) {
    for (const Table& table : peer.tables) {
      absl::string_view key = pattern;
      if (known || !absl::ConsumePrefix(&key, table.prefix)) continue;
      for (const Row& row : RowsOf(table)) {
        if (!Matches(row, key, below)) continue;
        known = true;
        ApplyRow(peer.name, row, setting, by_default);
      }
    }
  }
  if (known || setting.is_null) return;
  std::vector<std::string> names;
  for (const Table& table : peer.tables) {
    for (const Row& row : RowsOf(table)) {
      for (const absl::string_view name : absl::StrSplit(row.keys, ' ')) {
        names.push_back(absl::StrCat(table.prefix, name));
      }
    }
  }
  // Longer ones are no misspelling.
  const std::string nearest =
      pattern.size() < 80 ? NearestName(pattern, names) : "";
  table_.push_back({Effect::kLost, setting.key, setting.value, "",
                    absl::StrCat("not mapped: no setting of ", peer.name,
                                 " known here", DidYouMean(nearest))});
}

void Draft::ApplyRow(const std::string& peer, const Row& row,
                     const Setting& setting, bool by_default) {
  const std::string& key = setting.key;
  if (setting.is_null || absl::EqualsIgnoreCase(setting.value, "auto")) {
    // Left to its default, or to another file.
    const bool says = absl::StrContains(absl::StrCat(" ", row.how), " auto=") ||
                      row.how == "raw";
    if (setting.is_null) nulls.insert(key);
    if (!says || setting.is_null) {
      table_.push_back({Effect::kNothing, key, setting.value, "", ""});
      return;
    }
  }
  const Converted made = Convert(row.how, setting);
  // Of a row that refuses some values the note is about those.
  const bool refuses = absl::StrContains(row.how, '!') || row.how == "lost";
  const std::string note = refuses ? "" : row.note;
  if (made.kind == Converted::kNothing) {
    // Nothing for this field, but maybe for another.
    if (!absl::EndsWith(row.how, "*=-")) {
      table_.push_back({Effect::kNothing, key, setting.value, "", note});
    }
    return;
  }
  if (made.kind != Converted::kText) {
    lost_.emplace(row.field, key);
    table_.push_back(
        {Effect::kLost, key, setting.value, "",
         made.kind == Converted::kWrong
             ? absl::StrCat(made.text, row.note.empty() ? "" : ": ", row.note)
             : row.note});
    return;
  }
  const std::string field =
      row.field == "@*" ? absl::StrCat("@", key) : row.field;
  const auto [place, is_new] = fields_.insert(
      {field, {made.text, key, setting.value, peer, by_default}});
  if (!is_new) {
    if (by_default) return;
    // That's how a peer works: a command goes before its file.
    const bool own = place->second.peer == peer && place->second.origin == key;
    if (!SameValue(place->second.text, made.text)) {
      table_.push_back({own ? Effect::kNothing : Effect::kDiffers, key,
                        setting.value, "",
                        absl::StrCat("not taken: ", place->second.origin, ": ",
                                     place->second.raw, " goes first")});
    } else {
      table_.push_back(
          {Effect::kMapped, key, setting.value,
           field[0] == '@' ? "" : absl::StrCat(field, ": ", place->second.text),
           ""});
    }
    return;
  }
  const bool fact = field[0] == '@';
  // One line for all facts of a key.
  const Effect effect = made.differs ? Effect::kDiffers
                        : by_default ? Effect::kDefault
                                     : Effect::kMapped;
  if (fact && absl::c_any_of(table_, [&](const TableLine& line) {
        return line.key == key && line.effect == effect && line.ours.empty();
      })) {
    return;
  }
  const std::string ours = absl::StrCat(field, ": ", made.text);
  if (by_default &&
      SayInPlace(field,
                 fact ? absl::StrCat("as ", key, ": ", setting.value) : ours)) {
    return;
  }
  table_.push_back({effect, key, setting.value, fact ? "" : ours,
                    made.differs ? row.note : note});
}

bool Draft::SayInPlace(const std::string& field, const std::string& ours) {
  const auto lost = lost_.find(field);
  if (lost == lost_.end()) return false;
  for (TableLine& line : table_) {
    if (line.effect == Effect::kLost && line.key == lost->second) {
      line.ours = ours;
    }
  }
  return true;
}

const Field& Draft::At(const std::string& field) const {
  static const Field* const none = new Field;
  const auto found = fields_.find(field);
  return found == fields_.end() ? *none : found->second;
}

std::string Draft::Origins(const std::vector<const char*>& facts) const {
  std::vector<std::string> origins;
  for (const char* const fact : facts) {
    if (Has(fact)) origins.push_back(Origin(fact));
  }
  return absl::StrJoin(origins, ", ");
}

double Draft::Number(const std::string& field, double otherwise) const {
  double number = 0.0;
  return absl::SimpleAtod(Text(field), &number) ? number : otherwise;
}

bool Draft::Flag(const std::string& field) const {
  bool flag = false;
  return ReadFlag(Text(field), &flag) && flag;
}

std::vector<TableLine*> Draft::LinesOf(const std::string& field) {
  std::vector<TableLine*> lines;
  for (TableLine& line : table_) {
    if ((line.effect == Effect::kMapped || line.effect == Effect::kDefault ||
         line.effect == Effect::kLost) &&
        absl::StartsWith(line.ours, absl::StrCat(field, ": "))) {
      lines.push_back(&line);
    }
  }
  return lines;
}

void Draft::Set(const std::string& field, const std::string& text,
                const std::string& origin) {
  fields_[field] = {text, origin, text, "", false};
  for (TableLine* const line : LinesOf(field)) {
    line->ours = absl::StrCat(field, ": ", text);
  }
}

void Draft::Erase(const std::string& field) {
  fields_.erase(field);
  for (TableLine* const line : LinesOf(field)) {
    line->ours = "";
    if (line->effect == Effect::kLost) continue;
    line->effect = Effect::kNothing;
    if (line->note.empty()) line->note = "what else is set goes first";
  }
}

void Draft::SetQuoted(const std::string& field, const std::string& value,
                      const std::string& origin) {
  Set(field, Quoted(value), origin);
}

void Draft::EraseAll(absl::string_view prefix, absl::string_view names) {
  for (const absl::string_view name : absl::StrSplit(names, ' ')) {
    Erase(absl::StrCat(prefix, ".", name));
  }
}

void Draft::Copy(const std::string& fact, const std::string& field) {
  const Field value = At(fact);
  if (Has(fact)) Set(field, value.text, value.origin);
}

void Draft::CopyAll(absl::string_view prefix, absl::string_view facts) {
  for (const absl::string_view fact : absl::StrSplit(facts, ' ')) {
    Copy(std::string(fact), absl::StrCat(prefix, ".", fact.substr(1)));
  }
}

void Draft::DropDefault(const std::string& field) {
  const auto found = fields_.find(field);
  if (found == fields_.end() || !found->second.by_default) return;
  table_.erase(std::remove_if(table_.begin(), table_.end(),
                              [&](const TableLine& line) {
                                return line.effect == Effect::kDefault &&
                                       line.key == found->second.origin;
                              }),
               table_.end());
  fields_.erase(found);
  for (TableLine* const line : LinesOf(field)) {
    if (line->effect == Effect::kLost) line->ours = "";
  }
}

void Draft::NoteUnused(const std::string& fact, const std::string& note) {
  const auto found = fields_.find(fact);
  if (found == fields_.end()) return;
  const std::string& key = found->second.origin;
  unused_.insert(fact);
  for (const auto& [field, value] : fields_) {
    if (value.origin == key && unused_.count(field) == 0) return;
  }
  for (TableLine& line : table_) {
    if (line.key != key || line.effect == Effect::kLost ||
        line.effect == Effect::kDiffers) {
      continue;
    }
    line.effect = Effect::kNothing;
    line.note = note;
  }
}

void Draft::Note(Effect effect, const std::string& key,
                 const std::string& value, const std::string& ours,
                 const std::string& note) {
  TableLine line{effect, key, value, ours, note};
  const auto same = [&](const TableLine& other) {
    return other.key == key && (other.effect == Effect::kMapped ||
                                other.effect == Effect::kDefault);
  };
  const auto first = std::find_if(table_.begin(), table_.end(), same);
  if (first != table_.end()) {
    if (value.empty()) line.value = first->value;
    if (ours.empty() && effect != Effect::kLost) line.ours = first->ours;
    table_.erase(std::remove_if(first, table_.end(), same), table_.end());
  }
  table_.push_back(std::move(line));
}

bool Draft::loses() const {
  for (const TableLine& line : table_) {
    if (line.effect == Effect::kLost || line.effect == Effect::kDiffers) {
      return true;
    }
  }
  return false;
}

std::string Draft::Find(const std::string& path) const {
  namespace fs = std::filesystem;
  std::error_code error;
  if (path.empty() || fs::exists(path, error)) return path;
  for (const std::string& base : bases) {
    fs::path folder = base;
    while (true) {
      const fs::path there = folder / path;
      if (fs::exists(there, error)) return there.string();
      if (folder == folder.parent_path()) break;
      folder = folder.parent_path();
    }
  }
  return "";
}

std::string Draft::Path(const std::string& path) const {
  const bool hub = !path.empty() && absl::ascii_isalnum(path[0]) &&
                   absl::c_all_of(path,
                                  [](char c) {
                                    return absl::ascii_isalnum(c) ||
                                           absl::StrContains("._-/", c);
                                  }) &&
                   absl::c_count(path, '/') <= 1 &&
                   !absl::EndsWith(path, "/") && !IsDataFile(path);
  if (!hub) return FilePath(path);
  // The folder of a script for a model isn't that model.
  const std::string found = Find(path);
  std::error_code error;
  const bool own = absl::c_any_of(bases, [&](const std::string& base) {
    return !PathExists(absl::StrCat(found, "/config.json")) &&
           std::filesystem::equivalent(found, base, error);
  });
  return found.empty() || own ? absl::StrCat("hf:", path) : FilePath(path);
}

std::string Draft::FilePath(const std::string& path) const {
  namespace fs = std::filesystem;
  std::error_code error;
  const std::string found = Find(path);
  if (!found.empty()) {
    const fs::path here = fs::absolute(found, error).lexically_normal();
    const std::string below = here.lexically_relative(folder).string();
    return below.empty() || absl::StartsWith(below, "..") ? here.string()
                                                          : below;
  }
  return path;
}

}  // namespace capstan::import
