// SPDX-License-Identifier: Apache-2.0
#include "desk/data/facts.h"

#include <algorithm>
#include <cmath>

#include "absl/algorithm/container.h"
#include "absl/hash/hash.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "text/tokenizer/unicode.h"
#include "trainer/metrics/console.h"

namespace capstan {
namespace {

using Level = Finding::Level;

// Different reasons to leave rows out; the others are told together.
constexpr size_t kMostReasons = 12;
constexpr int64_t kBins = 12;
constexpr size_t kMostShown = 60;  // bytes of a value

// What rows of chats, preferences and texts have; a template may take others.
constexpr const char* kUsualRoles[] = {
    "assistant", "completion", "developer",     "function", "ipython", "prompt",
    "system",    "text",       "function_call", "tool",     "user"};

// A reason without what differs between rows: quoted words, numbers, and what
// follows the first semicolon.
std::string Pattern(absl::string_view reason) {
  std::string pattern;
  bool quoted = false;
  for (const char c : reason.substr(0, reason.find(';'))) {
    if (c == '"') quoted = !quoted;
    if (!quoted && !absl::ascii_isdigit(c)) pattern += c;
  }
  return pattern;
}

// Lower case, with a single space between words. `text` is UTF-8.
std::string Folded(absl::string_view text) {
  std::string folded;
  bool space = false;
  for (size_t at = 0; at < text.size();) {
    const uint32_t c = tokenizer::NextCharacter(text, &at);
    if (tokenizer::IsSpace(c)) {
      space = !folded.empty();
      continue;
    }
    if (space) folded += ' ';
    space = false;
    tokenizer::AppendLowercase(c, &folded);
  }
  return folded;
}

// Whether a conversation or a prompt gets no answer, or an empty one.
bool LacksAnswer(const RowText& text) {
  const bool plain = text.turns.empty() ||
                     (text.turns.size() == 1 && text.turns[0].role == "text");
  bool any = false, empty = false;
  for (const RowTurn& turn : text.turns) {
    any |= turn.answer;
    empty |= turn.answer && absl::StripAsciiWhitespace(turn.text).empty();
  }
  return !plain && (!any || empty);
}

// Whether a part of a text is UTF-8, but for a character that is cut at either
// end. U+FFFD stands for bytes that weren't.
bool IsPartOfUtf8(absl::string_view text) {
  for (int i = 0; i < 3 && !text.empty() && tokenizer::IsContinuation(text[0]);
       ++i) {
    text.remove_prefix(1);
  }
  size_t last = 1;  // bytes from the beginning of the last character on
  while (last < text.size() &&
         tokenizer::IsContinuation(text[text.size() - last]))
    ++last;
  if (last <= text.size() &&
      tokenizer::CharacterBytes(text[text.size() - last]) > last) {
    text.remove_suffix(last);
  }
  return tokenizer::IsUtf8(text) && !absl::StrContains(text, "\uFFFD");
}

const std::string* UnusualRole(const RowText& text) {
  for (const RowTurn& turn : text.turns) {
    if (!absl::c_linear_search(kUsualRoles, turn.role)) return &turn.role;
  }
  return nullptr;
}

}  // namespace

const char* LevelName(Level level) {
  constexpr const char* kNames[] = {"ok", "warning", "failure"};
  return kNames[static_cast<int>(level)];
}

bool DataFacts::failed() const {
  return absl::c_any_of(
      findings, [](const Finding& f) { return f.level == Level::kFailure; });
}

int64_t DataFacts::Percentile(double fraction) {
  std::sort(lengths.begin(), lengths.end());
  const auto last = static_cast<double>(lengths.size() - 1);
  return lengths[static_cast<size_t>(std::ceil(fraction * last))];
}

std::vector<LengthBin> DataFacts::Bins() {
  std::vector<LengthBin> bins;
  if (lengths.empty()) return bins;
  const int64_t most = Percentile(0.99);
  // Widths that people count in: 1, 2, 5, 10, 20, ..
  int64_t width = 1;
  for (int64_t i = 0; width * kBins < most; ++i) {
    width = i % 3 == 1 ? width * 5 / 2 : width * 2;
  }
  const int64_t first = lengths[0] / width;
  for (int64_t b = first; b <= most / width; ++b) {
    bins.push_back({b * width, (b + 1) * width - 1, 0});
  }
  for (const uint32_t length : lengths) {
    const size_t b = length / width - first;
    ++bins[std::min(b, bins.size() - 1)].rows;
  }
  bins.back().to = std::max<int64_t>(bins.back().to, lengths.back());
  return bins;
}

void RowChecks::Hits::Add(const DataRow& row, absl::string_view reason) {
  if (count++ > 0) return;
  first = row.place;
  why = std::string(reason);
}

RowChecks::Hashes RowChecks::HashesOf(const DataRow& row) {
  std::string exact, folded;
  for (const RowText& text : row.texts) {
    for (const RowTurn& turn : text.turns) {
      // The separators are in no UTF-8 text.
      absl::StrAppend(&exact, turn.role, "\xff", turn.text, "\xff");
      absl::StrAppend(&folded, turn.role, "\xff", Folded(turn.text), "\xff");
    }
    if (!text.turns.empty()) continue;
    exact.append(reinterpret_cast<const char*>(text.ids.data()),
                 text.ids.size() * sizeof(text.ids[0]));
    folded = exact;
  }
  const absl::Hash<std::string> hash;
  return {hash(exact), hash(folded)};
}

void RowChecks::FindSpecials(const Tokenizer& tokenizer) {
  // Shorter ones, of toy vocabularies, are in any text.
  constexpr size_t kShortest = 3;
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.IsSpecial(id)) continue;
    std::string spelling = tokenizer.Decode({id});
    if (spelling.size() >= kShortest) {
      special_begins_ += spelling[0];
      special_tokens_.push_back(std::move(spelling));
    }
  }
}

absl::string_view RowChecks::SpecialIn(absl::string_view text) const {
  for (size_t at = text.find_first_of(special_begins_); at != text.npos;
       at = text.find_first_of(special_begins_, at + 1)) {
    for (const std::string& token : special_tokens_) {
      if (absl::StartsWith(text.substr(at), token)) return token;
    }
  }
  return "";
}

void RowChecks::AddTexts(const RowsOfReader& all, const DataRow& row) {
  for (const RowText& text : row.texts) {
    facts_.tokens += static_cast<int64_t>(text.ids.size());
    facts_.trained += text.trained();
    facts_.turns += static_cast<int64_t>(text.turns.size());
    for (const RowTurn& turn : text.turns) ++facts_.roles[turn.role];
  }
  // Each once a row, whatever the number of its turns, which are UTF-8, or
  // their row can't be read.
  if (absl::c_any_of(row.texts, [&](const RowText& text) {
        return text.turns.empty() && all.tokenizer != nullptr &&
               !IsPartOfUtf8(all.tokenizer->Decode(text.ids));
      })) {
    not_utf8_.Add(row);
  }
  if (!row.is_prompt && absl::c_any_of(row.texts, LacksAnswer)) {
    empty_.Add(row);
  }
  for (const RowText& text : row.texts) {
    const std::string* const role = UnusualRole(text);
    if (role == nullptr) continue;
    roles_.Add(row, absl::StrCat("it has the role \"", *role, "\""));
    break;
  }
  for (const RowText& text : row.texts) {
    for (const RowTurn& turn : text.turns) {
      const absl::string_view token = SpecialIn(turn.text);
      if (token.empty()) continue;
      specials_.Add(row, absl::StrCat("it has \"", token, "\""));
      return;
    }
  }
}

void RowChecks::Add(const RowsOfReader& all, const DataRow& row) {
  if (all_.tokenizer == nullptr && all.tokenizer != nullptr) {
    FindSpecials(*all.tokenizer);
  }
  all_ = all;
  if (!row.status.ok()) {
    std::pair<bool, std::string> reason = {!absl::IsInvalidArgument(row.status),
                                           Pattern(row.status.message())};
    if (left_out_.size() >= kMostReasons && left_out_.count(reason) == 0) {
      reason.second.clear();
    }
    left_out_[reason].Add(row, row.status.message());
    return;
  }
  if (row.left_out()) return untrained_.Add(row);
  const Hashes hashes = HashesOf(row);
  if (row.held_back) {
    ++facts_.held_back;
    held_back_.emplace_back(hashes, row.place);
    return;
  }
  ++facts_.rows;
  if (!row.kind.empty()) ++facts_.kinds[row.kind];
  facts_.lengths.push_back(static_cast<uint32_t>(row.length));
  if (row.cut) cut_.Add(row);
  if (!row.label.empty()) {
    labels_.Add(row, absl::StrCat("it has ", row.label.substr(0, kMostShown)));
  }
  if (!exact_.insert(hashes.exact).second) twice_.Add(row);
  folded_.insert(hashes.folded);
  AddTexts(all, row);
}

void RowChecks::CompareWithTraining(const Hashes& hashes, const DataRow& row) {
  has_validation_ = true;
  if (exact_.contains(hashes.exact)) {
    validation_.Add(row);
  } else if (folded_.contains(hashes.folded)) {
    validation_folded_.Add(row);
  }
}

void RowChecks::AddValidation(const DataRow& row) {
  if (!row.status.ok() || row.held_back || row.left_out()) return;
  CompareWithTraining(HashesOf(row), row);
}

void RowChecks::AddFinding(Level level, const char* check, const char* what,
                           const Hits& hits, const std::string& advice) {
  facts_.findings.push_back({hits.count == 0 ? Level::kOk : level, check, what,
                             hits.count, hits.first, hits.why,
                             hits.count == 0 ? "" : advice});
}

void RowChecks::AddLeftOut(const std::string& why) {
  const Level level = why.empty() ? Level::kWarning : Level::kFailure;
  constexpr const char* kWhat = "rows that can't be read";
  if (left_out_.empty()) AddFinding(level, "unreadable", kWhat, Hits(), "");
  for (const auto& [reason, hits] : left_out_) {
    // What is wrong with a config says itself what to do.
    AddFinding(level, "unreadable", kWhat, hits,
               reason.first ? "" : all_.if_bad);
  }
}

DataFacts RowChecks::Finish(const std::string& why) {
  for (const auto& [hashes, place] : held_back_) {
    DataRow row;
    row.place = place;
    CompareWithTraining(hashes, row);
  }
  // Often it is one of the rows that can't be read.
  const bool is_told = absl::c_any_of(left_out_, [&](const auto& reason) {
    return absl::StrContains(why, reason.second.why);
  });
  if (!is_told) {
    Hits refused;
    if (!why.empty()) refused = {1, "", why};
    AddFinding(Level::kFailure, "run", "reasons to refuse the run", refused,
               "");
  }
  // No row has come: the data is no text.
  if (all_.max_length == 0) return std::move(facts_);
  AddLeftOut(why);
  AddFinding(facts_.rows == 0 ? Level::kFailure : Level::kWarning, "untrained",
             "rows without a token to train on, which are left out", untrained_,
             all_.if_untrained);
  std::string longest;
  if (cut_.count > 0) {
    longest = absl::StrCat("The longest has ", WithCommas(facts_.Percentile(1)),
                           " tokens: ", all_.if_cut);
  }
  AddFinding(Level::kWarning, "cut", "rows that are cut", cut_, longest);
  AddFinding(Level::kWarning, "duplicates", "rows equal to an earlier one",
             twice_, "remove them, unless they are to count more");
  if (facts_.turns == 0 && all_.tokenizer != nullptr) {
    AddFinding(Level::kWarning, "encoding", "samples whose text isn't UTF-8",
               not_utf8_, "see whether the file is a text, and in UTF-8");
  }
  // Other samples have no turns to look at.
  if (facts_.turns > 0) {
    AddFinding(Level::kWarning, "empty_answers",
               "rows with an empty answer, or none", empty_,
               "remove them: a model learns to say nothing");
    AddFinding(Level::kWarning, "roles",
               "rows with a role that few templates know", roles_,
               "see what the template makes of it (--row)");
    AddFinding(Level::kWarning, "labels",
               "rows with a label that isn't trained on", labels_,
               "make it an answer (prompt, completion); of answers that are "
               "good or bad, see kind: UNPAIRED");
    AddFinding(
        Level::kWarning, "special_tokens",
        "rows whose text spells a special token", specials_,
        "remove it: a model reads the token, as if the template wrote it");
  }
  if (has_validation_) {
    AddFinding(Level::kFailure, "validation",
               "validation rows that are trained on", validation_,
               "remove them on one side");
    AddFinding(Level::kWarning, "validation_folded",
               "validation rows trained on but for spaces and capitals",
               validation_folded_, "remove them on one side");
  }
  return std::move(facts_);
}

}  // namespace capstan
