// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_STREAM_STREAM_H_
#define CAPSTAN_DATASETS_STREAM_STREAM_H_

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/shared_memory.h"
#include "datasets/stream/cells.h"
#include "datasets/stream/lane.h"
#include "datasets/stream/lanes.h"
#include "datasets/stream/stream.pb.h"
#include "plugins/sdk/dataset.h"

namespace capstan::stream {

// Texts in many shards, of which only what is trained on soon is in memory.
// Sample i has tokens [k * T, (k + 1) * T) of lane l, where l is i mod lanes, k
// is i / lanes and T is sequence_length (lane.h): nothing is padded, and
// nothing is left out. So which tokens a sample has depends on the shards, the
// seed and T alone, and a rank reads the lanes of its samples. Batches have
// "input_ids" [n, T] int64 and, if documents are separate, "labels" and
// "positions".
class Stream final : public DatasetReader {
 public:
  static absl::StatusOr<std::unique_ptr<Stream>> Create(const Config& config);
  // With an existing tokenizer; `definition` is all that its tokens depend on.
  static absl::StatusOr<std::unique_ptr<Stream>> Create(
      const Config& config, std::shared_ptr<const Tokenizer> tokenizer,
      const std::string& definition);

  // Of texts an estimate; samples go on behind it.
  int64_t size() const override { return size_; }
  bool shuffle() const override { return false; }  // done here
  bool draws_anew() const override { return true; }
  absl::Status Read(absl::Span<const int64_t> indices,
                    Batch* batch) const override;
  absl::StatusOr<std::unique_ptr<DatasetReader>> Validation() const override {
    return nullptr;
  }
  int64_t max_sequence_length() const override {
    return config_.sequence_length();
  }
  std::vector<std::string> notes() const override;
  std::vector<CountedFile> counted_files() const override;
  const Tokenizer* tokenizer() const override { return tokenizer_.get(); }
  ~Stream() override;
  // Of the shards' names, sizes, and first and last bytes: to read all of them
  // would take hours.
  absl::StatusOr<std::string> Digest() const override;

 private:
  Stream(const Config& config, std::shared_ptr<const Tokenizer> tokenizer);

  absl::Status OpenTexts(const std::string& definition);
  absl::Status OpenTokens(const std::string& definition);
  absl::Status ChooseSize();
  absl::StatusOr<double> EstimateTokens();
  absl::Status ChooseKeep(int64_t tokens);
  absl::Status ChooseLanes();
  absl::StatusOr<bool> EachLaneHasTexts();
  void MakeLanes();
  std::vector<CellRun> RunsOf(int64_t lane, int64_t epoch);
  void SayCounting() const;
  void SaySpeed() const;

  Config config_;  // with defaults filled in
  const std::shared_ptr<const Tokenizer> tokenizer_;
  std::unique_ptr<RemoteShards> remote_;  // null: no address
  std::vector<Shard> shards_;
  bool counted_ = false;  // not estimated
  // Of the places that were looked at: the most tokens a byte in one of them,
  // by the least; 0: none in one.
  double unevenness_ = 1;
  int64_t size_ = 1;
  LaneOrder order_;
  std::unique_ptr<SharedMemory> memory_;  // of tally_
  Tally* tally_ = nullptr;
  const pid_t maker_ = getpid();
  mutable std::atomic<pid_t> reader_{0};  // the process that has read last
  std::unique_ptr<Texts> texts_;
  std::unique_ptr<CellStore> store_;
  bool keep_ = false;
  std::unique_ptr<CellSource> source_;
  std::unique_ptr<Cells> cells_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mutex mutex_;
  // By epoch, the last ones.
  std::map<int64_t, std::vector<std::vector<CellRun>>> epochs_;
};

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_STREAM_H_
