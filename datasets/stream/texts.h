// SPDX-License-Identifier: Apache-2.0
//
// The texts of a shard's cells, by format.
#ifndef CAPSTAN_DATASETS_STREAM_TEXTS_H_
#define CAPSTAN_DATASETS_STREAM_TEXTS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "datasets/stream/shard.h"

namespace capstan::stream {

struct Document {
  std::string text;
  int64_t place = 0;  // where in the shard: see PlaceOf
  absl::Status bad;   // why there is no text
};

// Reads cells in any order, but faster in theirs. Thread-safe; one object may
// be used on both sides of a fork.
class Texts {
 public:
  virtual ~Texts() = default;

  // The documents of a cell, in the shard's order. An error is the shard's:
  // damaged, changed, gone; a document that can't be read is in the result.
  virtual absl::StatusOr<std::vector<Document>> Read(const Shard& shard,
                                                     int64_t cell) = 0;
  // Ends processes that help, before this one forks. The next Read starts new
  // ones.
  virtual void EndHelpers() {}
  // "data/003.jsonl:17"
  virtual std::string PlaceOf(const Shard& shard, int64_t place) const = 0;
};

// Of JSON lines, plain or packed.
std::unique_ptr<Texts> NewJsonTexts(const std::string& field);
// Of tar files: members KEY.txt, which are texts, and KEY.json, which have
// them in `field`; a KEY that has both has its text in the first.
std::unique_ptr<Texts> NewTarTexts(const std::string& field);
// Of Parquet. Fills in the shards' cells, which need their footers.
absl::StatusOr<std::unique_ptr<Texts>> NewParquetTexts(
    const std::string& field, std::vector<Shard>* shards);

// The text in `field` of a row of JSON.
absl::StatusOr<std::string> TextOfJson(absl::string_view json,
                                       const std::string& field);

// OK if `text` is UTF-8 and not too long.
absl::Status CheckText(absl::string_view text);
absl::Status TooLong(int64_t bytes);

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_TEXTS_H_
