// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_STREAM_LANE_H_
#define CAPSTAN_DATASETS_STREAM_LANE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "datasets/stream/cells.h"
#include "datasets/stream/lanes.h"

namespace capstan::stream {

// The tokens of a lane: its cells of epoch 0, then those of epoch 1, and so on
// without an end. Where a token is follows from the numbers of tokens of the
// cells before it, which the source knows, or which have to be read. Thread-
// safe.
class Lane {
 public:
  // The runs of this lane in an epoch.
  using Runs = std::function<std::vector<CellRun>(int64_t epoch)>;

  // `counting` is called where many cells are read only to find a place.
  // `name` is what an error says.
  Lane(std::string name, Runs runs, CellSource* source, Cells* cells,
       std::function<void()> counting)
      : name_(std::move(name)),
        runs_of_(std::move(runs)),
        source_(*source),
        cells_(*cells),
        counting_(std::move(counting)) {}

  // Reads tokens [begin, begin + count) to `ids` and, unless it is null, each
  // one's position in its document, counted from `begin` on.
  absl::Status Read(int64_t begin, int64_t count, int64_t* ids,
                    int64_t* positions);
  // Has the cell of token `begin` made ahead, as far as it is known.
  void Ahead(int64_t begin);

 private:
  void BeginEpoch(int64_t epoch);
  absl::Status EndEpoch();
  // Goes on by one cell; false: its tokens must be counted first.
  bool ExtendByKnown();
  absl::Status Extend();
  // The place, in this epoch, of the cell with token `at`.
  absl::StatusOr<size_t> Find(int64_t at);
  Cells::Id IdOf(size_t place) const;
  size_t size() const { return run_ends_.empty() ? 0 : run_ends_.back(); }
  int64_t known_end() const {
    return begin_ + (ends_.empty() ? 0 : ends_.back());
  }

  const std::string name_;
  const Runs runs_of_;
  CellSource& source_;
  Cells& cells_;
  const std::function<void()> counting_;
  std::mutex mutex_;
  int64_t epoch_ = -1;
  std::vector<int64_t> epoch_begins_;  // tokens, of those met so far
  // Of the epoch:
  int64_t begin_ = 0;  // its first token
  std::vector<CellRun> runs_;
  std::vector<size_t> run_ends_;  // in cells
  std::vector<int64_t> ends_;     // of its first cells, in tokens
  // The known numbers of the run that ends_ goes on in.
  size_t counted_run_ = 0;
  std::vector<int64_t> counts_;
};

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_LANE_H_
