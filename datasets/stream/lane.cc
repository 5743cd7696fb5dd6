// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/lane.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/status.h"

namespace capstan::stream {
namespace {

constexpr size_t kCountedAhead = 16;  // cells that threads count at once
constexpr int kMostEmpty = 8;         // epochs
constexpr int64_t kManyCells = 8;     // at least

}  // namespace

void Lane::BeginEpoch(int64_t epoch) {
  epoch_ = epoch;
  begin_ = epoch_begins_[static_cast<size_t>(epoch)];
  runs_ = runs_of_(epoch);
  run_ends_.clear();
  size_t cells = 0;
  for (const CellRun& run : runs_) {
    cells += static_cast<size_t>(run.count);
    run_ends_.push_back(cells);
  }
  ends_.clear();
  counted_run_ = runs_.size();
}

Cells::Id Lane::IdOf(size_t place) const {
  const size_t run = static_cast<size_t>(
      std::upper_bound(run_ends_.begin(), run_ends_.end(), place) -
      run_ends_.begin());
  const size_t before = run == 0 ? 0 : run_ends_[run - 1];
  Cells::Id id;
  id.epoch = epoch_;
  id.shard = runs_[run].shard;
  id.cell = runs_[run].first + static_cast<int64_t>(place - before);
  return id;
}

bool Lane::ExtendByKnown() {
  const size_t place = ends_.size();
  const size_t run = static_cast<size_t>(
      std::upper_bound(run_ends_.begin(), run_ends_.end(), place) -
      run_ends_.begin());
  if (run != counted_run_) {
    counted_run_ = run;
    counts_ =
        source_.Counts(runs_[run].shard, runs_[run].first, runs_[run].count);
  }
  const int64_t count = counts_[place - (run == 0 ? 0 : run_ends_[run - 1])];
  if (count < 0) return false;
  ends_.push_back(known_end() - begin_ + count);
  return true;
}

absl::Status Lane::Extend() {
  if (ExtendByKnown()) return absl::OkStatus();
  const size_t place = ends_.size();
  CAPSTAN_ASSIGN_OR_RETURN(const auto cell, cells_.Get(IdOf(place)));
  ends_.push_back(known_end() - begin_ +
                  static_cast<int64_t>(cell->ids.size()));
  return absl::OkStatus();
}

absl::Status Lane::EndEpoch() {
  const auto epochs = static_cast<int64_t>(epoch_begins_.size());
  if (epoch_ + 1 == epochs) epoch_begins_.push_back(known_end());
  const auto empty = std::count(epoch_begins_.begin(), epoch_begins_.end(),
                                epoch_begins_.back());
  if (empty > kMostEmpty) {
    return WithCode(
        absl::InvalidArgumentError(absl::StrCat(
            name_, " has had no text in ", kMostEmpty,
            " epochs: its parts of the shards lie inside of long documents or "
            "of members without a text; set lanes to fewer")),
        "data/no-rows");
  }
  BeginEpoch(epoch_ + 1);
  return absl::OkStatus();
}

absl::StatusOr<size_t> Lane::Find(int64_t at) {
  if (epoch_ < 0) {
    epoch_begins_ = {0};
    BeginEpoch(0);
  }
  if (at < begin_) {
    BeginEpoch(
        std::upper_bound(epoch_begins_.begin(), epoch_begins_.end(), at) -
        epoch_begins_.begin() - 1);
  }
  // Far ahead of what is known: threads count what lies between.
  size_t ahead = 0;
  while (at >= known_end()) {
    if (ends_.size() == size()) {
      CAPSTAN_RETURN_IF_ERROR(EndEpoch());
      ahead = 0;
      continue;
    }
    if (!ExtendByKnown()) {
      if (at - known_end() > kManyCells * kCellTokens) counting_();
      for (ahead = std::max(ahead, ends_.size());
           ahead < std::min(size(), ends_.size() + kCountedAhead) &&
           at - known_end() > kCellTokens;
           ++ahead) {
        cells_.Ahead(IdOf(ahead));
      }
      CAPSTAN_RETURN_IF_ERROR(Extend());
    }
  }
  return static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), at - begin_) -
      ends_.begin());
}

void Lane::Ahead(int64_t begin) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (epoch_ < 0) {
    epoch_begins_ = {0};
    BeginEpoch(0);
  }
  if (begin < begin_) return;
  while (begin >= known_end() && ends_.size() < size() && ExtendByKnown()) {
  }
  const size_t place = static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), begin - begin_) -
      ends_.begin());
  if (place < size()) cells_.Ahead(IdOf(place));
}

absl::Status Lane::Read(int64_t begin, int64_t count, int64_t* ids,
                        int64_t* positions) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const int64_t end = begin + count;
  while (begin < end) {
    CAPSTAN_ASSIGN_OR_RETURN(const size_t place, Find(begin));
    const Cells::Id id = IdOf(place);
    CAPSTAN_ASSIGN_OR_RETURN(const auto cell, cells_.Get(id));
    if (place + 1 < size()) cells_.Ahead(IdOf(place + 1));
    const int64_t cell_begin = begin_ + (place == 0 ? 0 : ends_[place - 1]);
    const int64_t cell_end = begin_ + ends_[place];
    if (static_cast<int64_t>(cell->ids.size()) != cell_end - cell_begin) {
      return absl::DataLossError(absl::StrCat(
          "cell ", id.cell, " of shard ", id.shard, " has ", cell->ids.size(),
          " tokens, and the index of the cells says ", cell_end - cell_begin,
          ": remove the cache's folder (cache_folder, .capstan)"));
    }
    const auto first = static_cast<size_t>(begin - cell_begin);
    const auto here = static_cast<size_t>(std::min(end, cell_end) - begin);
    std::copy_n(cell->ids.begin() + first, here, ids);
    ids += here;
    if (positions != nullptr) {
      auto document =
          std::upper_bound(cell->ends.begin(), cell->ends.end(), first);
      int64_t position = 0;
      for (size_t i = first; i < first + here; ++i) {
        while (document != cell->ends.end() && *document <= i) {
          ++document;
          position = 0;
        }
        *positions++ = position++;
      }
    }
    begin += static_cast<int64_t>(here);
  }
  return absl::OkStatus();
}

}  // namespace capstan::stream
