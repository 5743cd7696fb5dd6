// SPDX-License-Identifier: Apache-2.0
//
// Samples and rows as they are shown: their text in runs of tokens that are
// trained on, or not.
#ifndef CAPSTAN_DESK_DATA_SAMPLES_H_
#define CAPSTAN_DESK_DATA_SAMPLES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/dataset.h"
#include "text/rows/rows.h"

namespace capstan {

// `text` as PrintableText, where a control character (but newline and tab), or
// one that changes the order of others or that nobody sees, is written out:
// "\u202e".
std::string VisibleText(absl::string_view text);

struct TextRun {
  std::string text;  // VisibleText
  bool trained;
};

// A text whose tokens see each other, and no others.
struct ShownDocument {
  std::string name;  // "chosen"; may be ""
  int64_t tokens = 0;
  int64_t trained = 0;
  std::vector<TextRun> runs;
  std::vector<TextRun> pieces;  // the first tokens: "722:us"
};

struct ShownSample {
  std::string name;  // "sample 3", "row 17, chats.jsonl:17"
  std::string why;   // it isn't trained on; "" if it is
  int64_t padding = 0;
  std::vector<ShownDocument> documents;
};

// A sample of a reader of texts, with at most `most` of each document's tokens
// as pieces.
absl::StatusOr<ShownSample> ShowSample(const DatasetReader& reader,
                                       int64_t sample, int64_t most);
// A row; `all` and `most` as above.
ShownSample ShowRow(const RowsOfReader& all, const DataRow& row, int64_t most);

// Visits the documents of a reader's samples, for a reader without
// VisitRowsOf: rows of one text without turns, whose place is the sample's.
absl::Status VisitSamples(const DatasetReader& reader, const RowVisitor& visit);

}  // namespace capstan

#endif  // CAPSTAN_DESK_DATA_SAMPLES_H_
