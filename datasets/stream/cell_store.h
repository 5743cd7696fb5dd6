// SPDX-License-Identifier: Apache-2.0
//
// What is known of the cells of texts, and the tokens that are kept of them, in
// a folder that ranks, runs and hosts share. Of each shard two files:
//
//   NAME-KEY.cells  an index: a header, then 32 bytes a cell, written in place
//   NAME-KEY.pack   tokens of cells, in the order in which they were made
//
// An entry is written behind the tokens that it tells of, and both have a
// CRC-32C, so that a process may be killed at any time: what isn't whole isn't
// there.
#ifndef CAPSTAN_DATASETS_STREAM_CELL_STORE_H_
#define CAPSTAN_DATASETS_STREAM_CELL_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "datasets/stream/shard.h"

namespace capstan::stream {

// The tokens of a cell's documents, one behind the other.
struct CellTokens {
  std::vector<uint32_t> ids;
  std::vector<uint32_t> ends;  // of each document, in ids
  int64_t bad_rows = 0;        // left out
};

class CellStore {
 public:
  // `settings`: all that tokens depend on beside a shard. Without a folder that
  // can be written there is no store: nothing is known, and nothing is kept;
  // problem() says why.
  static std::unique_ptr<CellStore> Open(const std::vector<Shard>* shards,
                                         absl::string_view settings,
                                         int64_t vocab_size,
                                         const std::string& folder);

  const std::string& folder() const { return folder_; }  // "": none
  const std::string& problem() const { return problem_; }
  // Of the tokens of all shards that are kept.
  int64_t KeptBytes() const;

  // The numbers of tokens of cells [first, first + count); -1: not known yet.
  std::vector<int64_t> Counts(int64_t shard, int64_t first,
                              int64_t count) const;
  // Null if they aren't kept, or are damaged.
  std::unique_ptr<CellTokens> Read(int64_t shard, int64_t cell) const;
  // Remembers their number and, if `keep`, the tokens. What can't be written is
  // not kept, and the error says why.
  absl::Status Write(int64_t shard, int64_t cell, const CellTokens& tokens,
                     bool keep) const;

  // Held by the one process, of any host, that makes a cell's tokens.
  class Lock {
   public:
    Lock(const CellStore& store, int64_t shard, int64_t cell);
    ~Lock();
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    int fd_ = -1;
  };

 private:
  CellStore(const std::vector<Shard>* shards, int64_t vocab_size)
      : shards_(*shards), wide_(vocab_size > 1 << 16) {}

  std::string PathOf(int64_t shard, absl::string_view ending) const;
  int OpenIndex(int64_t shard, bool make) const;
  absl::Status Append(int64_t shard, const std::string& bytes,
                      uint64_t* offset) const;

  const std::vector<Shard>& shards_;
  const bool wide_;  // 4 bytes a token, not 2
  std::string settings_;
  std::string folder_;
  std::string problem_;
};

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_CELL_STORE_H_
