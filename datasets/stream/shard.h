// SPDX-License-Identifier: Apache-2.0
//
// The shards of a run, and their cells: pieces of about 256 KiB, whose number
// is known before a shard is read. What is read, tokenized, shuffled and kept
// is a cell at a time.
#ifndef CAPSTAN_DATASETS_STREAM_SHARD_H_
#define CAPSTAN_DATASETS_STREAM_SHARD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files.h"
#include "datasets/chat/unpack.h"
#include "datasets/stream/remote_shards.h"

namespace capstan::stream {

enum class Format { kJsonLines, kParquet, kTar, kTokenFile, kBareTokens };

const char* NameOf(Format format);

// A cell of JSON lines has the rows, and one of a tar file the samples, whose
// first byte is in its range of kCellBytes.
inline constexpr int64_t kCellBytes = 256 << 10;
// The same of a packed file, whose texts are three or four times as long.
inline constexpr int64_t kPackedCellBytes = 64 << 10;
inline constexpr int64_t kCellTokens = 64 << 10;  // of files of tokens
inline constexpr int64_t kMostDocument = 64 << 20;

struct Shard {
  std::string path;  // or address
  std::string file;  // what is opened: a local copy, if it is an address
  RemoteShards* remote = nullptr;  // whose copy it is; null: not one
  int64_t object = 0;              // which of them
  Format format = Format::kJsonLines;
  chat::Packed packed = chat::Packed::kNot;
  int64_t bytes = 0;
  int64_t modified = 0;  // in ns
  // Of the bytes at its beginning and end: with `bytes`, what a resumed run
  // and a cache know it by.
  uint64_t ends_hash = 0;
  int64_t cells = 0;
  // What lanes are cut by, as near as it is known to the number of tokens:
  // bytes, of Parquet those of the texts, unpacked, of token files tokens.
  int64_t weight = 0;
  int64_t units = 0;     // rows of Parquet, tokens of files of tokens
  int64_t per_cell = 0;  // units of a cell
};

// The shards that `path` stands for, by name, without their cells. Errors name
// the shard: empty, cut off, of a format that isn't known or isn't that of the
// others.
absl::StatusOr<std::vector<Shard>> ListShards(const std::string& path);
// The same of objects.
absl::StatusOr<std::vector<Shard>> ListShards(RemoteShards* remote);

// A shard that is read. It is an error if it isn't the file that was listed.
class ShardFile {
 public:
  static absl::StatusOr<std::unique_ptr<ShardFile>> Open(const Shard& shard);
  ~ShardFile();
  ShardFile(const ShardFile&) = delete;
  ShardFile& operator=(const ShardFile&) = delete;

  // Reads exactly the bytes [begin, begin + size).
  absl::Status Read(int64_t begin, int64_t size, char* to) const;

 private:
  ShardFile(const Shard& shard, int fd) : shard_(shard), fd_(fd) {}

  const Shard& shard_;
  const int fd_;
};

// Has bytes [begin, begin + bytes) of shard.file there to be read.
absl::Status Ensure(const Shard& shard, int64_t begin, int64_t bytes);

// An error if the file at shard.path isn't the one that was listed.
absl::Status CheckUnchanged(const Shard& shard);

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_SHARD_H_
