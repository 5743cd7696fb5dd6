// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_CHAT_INDEX_BUILDER_H_
#define CAPSTAN_DATASETS_CHAT_INDEX_BUILDER_H_

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "datasets/chat/row_index.h"

namespace capstan::chat {

// One pass over a source by several threads. Rows come out in file order
// whatever the number of threads. Needs memory for a few chunks.
class IndexBuilder {
 public:
  struct Options {
    Kind kind;
    BadRows bad_rows;
    const RowEncoder* encoder;
    uint64_t chunk_bytes = 1 << 20;
  };
  using Sink = std::function<absl::Status(absl::Span<const IndexedRow>)>;

  IndexBuilder(const SourceFile& source, const Options& options)
      : source_(source), options_(options), scanner_(source.text->bytes()) {}

  // Called once. One thread at a time calls `sink`. Returns the error of the
  // first wrong row in file order.
  absl::StatusOr<RowIndex::Facts> Run(const Sink& sink);

 private:
  struct Chunk {
    absl::Status status;
    std::vector<IndexedRow> rows;
    RowIndex::Facts facts;
    uint64_t end = 0;  // offset of its end in the text
  };

  void Work(const Sink& sink);
  Chunk Index(const std::vector<RowPlace>& places, RowParser* parser) const;
  absl::Status AddRow(const RowPlace& place, RowParser* parser, Row* row,
                      RenderedRow* rendered, TokenRow* tokens,
                      Chunk* chunk) const;
  void Finish(uint64_t number, Chunk chunk, const Sink& sink);
  void Report(uint64_t end);

  const SourceFile& source_;
  const Options options_;
  std::mutex mutex_;  // guards all below
  std::condition_variable written_;
  RowScanner scanner_;
  uint64_t next_to_scan_ = 0;
  uint64_t next_to_write_ = 0;
  bool at_end_ = false;
  std::map<uint64_t, Chunk> waiting_;
  RowIndex::Facts facts_;
  absl::Status status_;
  double start_ = 0.0;
  double reported_ = 0.0;
};

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_INDEX_BUILDER_H_
