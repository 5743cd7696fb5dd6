// SPDX-License-Identifier: Apache-2.0
//
// What there is to know of a run's data, and what may be wrong with it.
#ifndef CAPSTAN_DESK_DATA_FACTS_H_
#define CAPSTAN_DESK_DATA_FACTS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "text/rows/rows.h"

namespace capstan {

// One line of the report.
struct Finding {
  enum class Level { kOk, kWarning, kFailure };

  Level level = Level::kOk;
  std::string check;  // names it for programs: "duplicates"
  std::string what;   // "rows that are there twice"
  int64_t count = 0;
  std::string first;   // the place of the first row; "" if there is none
  std::string why;     // of that row; may be ""
  std::string advice;  // an imperative; "" if ok
};
const char* LevelName(Finding::Level level);  // "ok", "warning", "failure"

// A range of lengths, in tokens.
struct LengthBin {
  int64_t from;
  int64_t to;  // inclusive
  int64_t rows;
};

struct DataFacts {
  int64_t rows = 0;  // that are trained on
  int64_t held_back = 0;
  int64_t tokens = 0;
  int64_t trained = 0;
  int64_t turns = 0;
  std::map<std::string, int64_t> roles;  // turns of each
  std::map<std::string, int64_t> kinds;  // rows of each
  std::vector<uint32_t> lengths;         // tokens of each row, before it is cut
  std::vector<Finding> findings;

  bool failed() const;
  // The length that `fraction` of the rows don't exceed. Sorts `lengths`, which
  // must not be empty.
  int64_t Percentile(double fraction);
  // At most 12 bins of equal widths; the last has all that is longer than 99 %
  // of the rows. Sorts `lengths`.
  std::vector<LengthBin> Bins();
};

// Looks at rows, one by one. In memory: 4 bytes and two hashes a row.
class RowChecks {
 public:
  // Of train_data, in file order.
  void Add(const RowsOfReader& all, const DataRow& row);
  // Of the evaluation's data; after all of train_data. Not for rows of
  // train_data that are held back.
  void AddValidation(const DataRow& row);
  // Whether a run can read the data: `why` not, or "". If it can, rows that
  // can't be read are left out.
  DataFacts Finish(const std::string& why);

 private:
  // How often something was found, and where first.
  struct Hits {
    int64_t count = 0;
    std::string first;
    std::string why;

    void Add(const DataRow& row, absl::string_view reason = "");
  };
  // A row's text, and its text without what people don't see.
  struct Hashes {
    uint64_t exact;
    uint64_t folded;
  };
  static Hashes HashesOf(const DataRow& row);

  void AddTexts(const RowsOfReader& all, const DataRow& row);
  void CompareWithTraining(const Hashes& hashes, const DataRow& row);
  // The first special token that the text spells; "" if none.
  absl::string_view SpecialIn(absl::string_view text) const;
  void FindSpecials(const Tokenizer& tokenizer);
  void AddLeftOut(const std::string& why);
  void AddFinding(Finding::Level level, const char* check, const char* what,
                  const Hits& hits, const std::string& advice);

  DataFacts facts_;
  RowsOfReader all_;
  // By whether the config is at fault, and the reason without its numbers.
  std::map<std::pair<bool, std::string>, Hits> left_out_;
  Hits untrained_, cut_, twice_, empty_, roles_, specials_, not_utf8_, labels_;
  Hits validation_, validation_folded_;
  bool has_validation_ = false;
  absl::flat_hash_set<uint64_t> exact_, folded_;
  std::vector<std::pair<Hashes, std::string>> held_back_;  // with their places
  std::vector<std::string> special_tokens_;
  std::string special_begins_;  // their first bytes
};

}  // namespace capstan

#endif  // CAPSTAN_DESK_DATA_FACTS_H_
