// SPDX-License-Identifier: Apache-2.0
//
// What Chat tells of its files: notes for users, and counts.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "datasets/chat/chat.h"
#include "datasets/chat/chat_config.h"
#include "datasets/chat/row_index.h"

namespace capstan::chat {
namespace {

void AddNotes(const SourceRows::File& file, const Config& config,
              std::vector<std::string>* notes) {
  const int64_t max_length = config.max_length();
  const RowIndex::Facts& facts = file.index->facts();
  const auto add = [&](const auto&... parts) {
    notes->push_back(absl::StrCat(file.file.path, ": ", parts...));
  };
  if (facts.bad > 0) {
    add(facts.bad, facts.bad == 1 ? " bad row was" : " bad rows were",
        " left out, the first is ", facts.first_bad);
  }
  if (facts.untrained > 0) {
    add(facts.untrained, facts.untrained == 1 ? " row was" : " rows were",
        " left out, without a token to train on within max_length (",
        max_length, ")");
  }
  if (facts.tools_as_text > 0) {
    add(facts.tools_as_text,
        facts.tools_as_text == 1 ? " row has" : " rows have",
        " tools or calls that the template doesn't write: they are in the "
        "contents as text, which the saved model's template won't write");
  }
  if (facts.cut > 0) {
    add(facts.cut, " of ", facts.rows, " rows lost their ",
        config.truncation() == KEEP_END ? "beginning" : "end",
        ", longer than max_length (", max_length, ")");
  }
}

CountedFile CountsOf(const SourceRows::File& file) {
  const RowIndex::Facts& facts = file.index->facts();
  const auto count = [](uint64_t n) { return static_cast<int64_t>(n); };
  CountedFile counted;
  counted.path = file.file.path;
  counted.counts = {{"bytes", count(file.file.bytes)},
                    {"rows", count(facts.rows)},
                    {"bad_rows", count(facts.bad)},
                    {"untrained_rows", count(facts.untrained)}};
  if (file.file.members > 0) {
    counted.counts["members"] = count(file.file.members);
    if (!file.file.is_table) {
      counted.counts["unpacked_bytes"] = count(file.file.text.size());
    }
  }
  return counted;
}

}  // namespace

std::vector<std::string> Chat::notes() const {
  std::vector<std::string> notes;
  const int64_t max_length = data_->config.max_length();
  if (data_->default_length && max_length < kDefaultLength) {
    notes.push_back(absl::StrCat("max_length is ", max_length,
                                 ", the positions that the model has"));
  }
  for (const OpenedSource& source : data_->sources) {
    for (const SourceRows::File& file : source.rows->files()) {
      AddNotes(file, data_->config, &notes);
    }
    if (data_->config.packing() != NONE) notes.push_back(FillNote(source));
  }
  return notes;
}

std::vector<CountedFile> Chat::counted_files() const {
  std::vector<CountedFile> files;
  // What is held out is in the files of the reader that it was taken from.
  if (part_ != data_->config.part()) return files;
  for (const OpenedSource& source : data_->sources) {
    for (const SourceRows::File& file : source.rows->files()) {
      files.push_back(CountsOf(file));
    }
  }
  return files;
}

std::string Chat::FillNote(const OpenedSource& source) const {
  const int64_t samples = source.samples->size(part_);
  const int64_t tokens = source.samples->tokens(part_);
  const double room = static_cast<double>(samples * data_->config.max_length());
  return absl::StrCat(
      source.rows->first_path(),
      source.rows->files().size() > 1 ? " and the others" : "",
      ": packed into ", samples, " samples of ", data_->config.max_length(),
      " tokens, ",
      // Of WRAPPED, a last token alone is left out.
      absl::StrFormat("%.1f", 100 *
                                  std::min(static_cast<double>(tokens), room) /
                                  std::max(room, 1.0)),
      " % full");
}

}  // namespace capstan::chat
