// SPDX-License-Identifier: Apache-2.0
//
// What a reader makes of each row of its files, for `trainer data`. A
// DatasetReader has what is trained on; here is what isn't, too, and where each
// row is. A reader of rows registers a function; of other readers only samples
// are seen.
#ifndef CAPSTAN_TEXT_ROWS_ROWS_H_
#define CAPSTAN_TEXT_ROWS_ROWS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "plugins/sdk/tokenizer.h"

namespace capstan {

// Whether a file has rows, packed or not, by its name's ending.
bool HasRowsName(absl::string_view name);

// A turn of a conversation, or one of a row's texts.
struct RowTurn {
  std::string role;     // "user", ..; of texts "prompt", "completion", "text"
  std::string text;     // as in the file; JSON of a message that has calls
  bool answer = false;  // what a model learns to write
};

// A text of a row, as it is trained on.
struct RowText {
  std::vector<RowTurn> turns;  // none if the row can't be read
  std::vector<int64_t> ids;
  std::vector<int64_t> labels;  // negative: not trained on

  // The trained tokens after the first, which nothing predicts.
  int64_t trained() const;
};

struct DataRow {
  std::string place;    // "chats.jsonl:17"
  absl::Status status;  // why the row can't be read
  std::string kind;     // "MESSAGES", as the reader calls it
  // JSON of a classification's label that the row has and nothing is trained
  // on; "" if it has none.
  std::string label;
  std::vector<RowText> texts = std::vector<RowText>(1);  // a pair: two
  int64_t length = 0;      // tokens of the longer text before it is cut
  bool cut = false;        // to RowsOfReader::max_length
  bool held_back = false;  // by the config, for validation
  bool is_prompt = false;  // the model is to answer it: nothing has a label
  double done = 0.0;       // the share of the files up to here

  // Of the text that has fewer; 0 if a pair's are equal once they are cut.
  int64_t trained() const;
  // Whether a run leaves it out: it would train on nothing.
  bool left_out() const { return !is_prompt && trained() == 0; }
};

// What holds for all rows of a reader; valid during the visit.
struct RowsOfReader {
  const Tokenizer* tokenizer = nullptr;
  int64_t max_length = 0;
  // What to do about rows that are cut, can't be read, or have no label: the
  // imperative, naming fields of the reader's config.
  const char* if_cut = "";
  const char* if_bad = "";
  const char* if_untrained = "";
};

// An error ends the visit, which returns it.
using RowVisitor =
    std::function<absl::Status(const RowsOfReader& all, const DataRow& row)>;

// Calls `visit` for each row of the config's part in file order, also for those
// that are left out, and for those held back from it. `config` is serialized.
// Takes CurrentModelTokenizer. Errors are those of the config and of files that
// can't be opened, as from the reader's Create. In memory for a few chunks.
using VisitRowsFunction = absl::Status (*)(absl::string_view config,
                                           const RowVisitor& visit);

// A static object of this type, in the reader's plugin, registers its function.
struct RegisterRows {
  RegisterRows(const char* config_type, VisitRowsFunction visit);
};

// Null if the reader has registered none, or its plugin isn't loaded.
VisitRowsFunction VisitRowsOf(const std::string& config_type);

}  // namespace capstan

#endif  // CAPSTAN_TEXT_ROWS_ROWS_H_
