// SPDX-License-Identifier: Apache-2.0
//
// For tests: a model of two parameters sharded over any number of ranks, which
// are threads of one process.
#ifndef CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_TESTING_H_
#define CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_TESTING_H_

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "plugins/sdk/process_group.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/save.h"

namespace capstan {

// The threads' rendezvous.
class ThreadMeeting {
 public:
  explicit ThreadMeeting(int size) : size_(size) {}

  int size() const { return size_; }

  void Sum(absl::Span<double> values) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (arrived_ == 0) sum_.assign(values.size(), 0.0);
    for (size_t i = 0; i < values.size(); ++i) sum_[i] += values[i];
    const int64_t round = round_;
    if (++arrived_ == size_) {
      arrived_ = 0;
      ++round_;
      result_ = sum_;
      changed_.notify_all();
    } else {
      changed_.wait(lock, [&] { return round_ != round; });
    }
    std::copy(result_.begin(), result_.end(), values.begin());
  }

 private:
  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  int64_t round_ = 0;
  std::vector<double> sum_;
  std::vector<double> result_;
};

// Implements only what checkpoints use: the host's all-reduce and all-gather.
class ThreadGroup final : public ProcessGroup {
 public:
  ThreadGroup(ThreadMeeting* meeting, int rank)
      : meeting_(meeting), rank_(rank) {}

  int rank() const override { return rank_; }
  int size() const override { return meeting_->size(); }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "none"; }
  std::unique_ptr<Work> AllReduce(const at::Tensor&) override { abort(); }
  std::unique_ptr<Work> ReduceScatter(const at::Tensor&,
                                      const at::Tensor&) override {
    abort();
  }
  // Of bytes.
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override {
    const int64_t size = input.numel();
    std::vector<double> values(output.numel(), 0.0);
    for (int64_t i = 0; i < size; ++i) {
      values[rank_ * size + i] = input.const_data_ptr<uint8_t>()[i];
    }
    meeting_->Sum(absl::MakeSpan(values));
    std::copy(values.begin(), values.end(), output.mutable_data_ptr<uint8_t>());
    return std::make_unique<Done>();
  }
  std::unique_ptr<Work> Broadcast(const at::Tensor&, int) override { abort(); }
  std::unique_ptr<Work> AllToAll(const at::Tensor&,
                                 const at::Tensor&) override {
    abort();
  }
  std::unique_ptr<Work> SendRecv(const at::Tensor&, int, const at::Tensor&,
                                 int) override {
    abort();
  }
  void AllReduceHost(absl::Span<double> values) override {
    meeting_->Sum(values);
  }
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int) override {
    return absl::UnimplementedError("a ThreadGroup can't be split");
  }
  CommunicationStats stats() const override { return {}; }

 private:
  struct Done : Work {
    void Wait() override {}
  };

  ThreadMeeting* const meeting_;
  const int rank_;
};

// Calls fn(group) on `ranks` threads; returns their statuses by rank.
inline std::vector<absl::Status> OnRanks(
    int ranks, const std::function<absl::Status(ProcessGroup&)>& fn) {
  ThreadMeeting meeting(ranks);
  std::vector<absl::Status> statuses(ranks);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadGroup group(&meeting, rank);
      statuses[rank] = fn(group);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

inline std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/checkpoint_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

// Names in a folder, including hidden ones.
inline std::set<std::string> Names(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

// The value of element `i` of a parameter's master (kind 0) or state (1, 2).
inline float ValueOf(int kind, int parameter, int64_t i) {
  return 0.1f + 1000.0f * kind + 100.0f * parameter + static_cast<float>(i);
}

// One rank's part of a run: `bounds` cut the flat model [a, pad, b], with 2
// elements of padding after a, into one shard per rank.
class FakeRun {
 public:
  FakeRun(int rank, std::vector<int64_t> bounds,
          std::vector<ParameterSpec> specs = Specs())
      : specs_(std::move(specs)) {
    const int64_t low = bounds[rank];
    const int64_t high = bounds[rank + 1];
    OptimizerShard shard;
    shard.master = at::zeros({high - low}, at::kFloat);
    shard.gradient = at::zeros({high - low}, at::kFloat);
    shard.working = at::zeros({high - low}, at::kBFloat16);
    int64_t at = 0;  // in the flat model
    for (int p = 0; p < static_cast<int>(specs_.size()); ++p) {
      const int64_t begin = std::max(low, at);
      const int64_t end = std::min(high, at + specs_[p].numel());
      if (begin < end) {
        shard.ranges.push_back({p, begin - at, end - begin, begin - low});
      }
      at += specs_[p].numel() + 2;
    }
    owned_ = {{0, 0, high - low}};
    shards_.push_back(shard);
    state_.push_back({at::zeros({high - low}, at::kFloat),
                      at::zeros({high - low}, at::kFloat)});
  }

  static std::vector<ParameterSpec> Specs() {
    return {{"a.weight", {4, 5}, 0, true}, {"b", {7}, 0, true}};
  }
  static constexpr int64_t kFlat = 31;  // 20 + 2 + 7 + 2

  at::Tensor tensor(int kind) {
    return kind == 0 ? shards_[0].master : state_[0][kind - 1];
  }

  void SetValues(float shift = 0.0f) {
    for (int kind = 0; kind < 3; ++kind) {
      float* values = tensor(kind).data_ptr<float>();
      for (const ParameterRange& r : shards_[0].ranges) {
        for (int64_t i = 0; i < r.length; ++i) {
          values[r.offset + i] =
              shift + ValueOf(kind, r.parameter, r.begin + i);
        }
      }
    }
  }

  // Whether all values are as SetValues sets them and padding is zero.
  bool HasValues(float shift = 0.0f) {
    FakeRun want = *this;
    const auto zeros = [&] {
      return at::zeros({shards_[0].master.numel()}, at::kFloat);
    };
    want.shards_[0].master = zeros();
    want.state_[0] = {zeros(), zeros()};
    want.SetValues(shift);
    for (int kind = 0; kind < 3; ++kind) {
      if (!tensor(kind).equal(want.tensor(kind))) return false;
    }
    return shards_[0].working.equal(shards_[0].master.to(at::kBFloat16));
  }

  CheckpointParts Parts(ProcessGroup& group) {
    CheckpointParts parts;
    parts.specs = &specs_;
    parts.shards = absl::MakeSpan(shards_);
    parts.state = &state_;
    parts.state_shapes = {{{"exp_avg"}, {}}, {{"exp_avg_sq"}, {}}};
    parts.owned = owned_;
    parts.group = &group;
    parts.config_text = "name: \"test\"\n";
    return parts;
  }

  std::vector<ParameterSpec> specs_;
  std::vector<OptimizerShard> shards_;
  std::vector<std::vector<at::Tensor>> state_;
  std::vector<OwnedSlice> owned_;
};

// A plugin's state: `mine` is saved, and what is loaded goes to *got.
inline PluginState StateOf(const std::string& kind, const std::string& mine,
                           std::string* got) {
  return {kind, "acme.x", kind == kObjectiveKind, [mine] { return mine; },
          [got](std::string bytes, const std::string&) {
            *got = std::move(bytes);
          }};
}

inline TrainState StateAt(int64_t step) {
  TrainState state;
  state.step = step;
  state.optimizer_steps = step - 1;
  state.samples = 8 * step;
  state.tokens = 512 * step;
  state.trained_tokens = 300 * step;
  state.padding = 77 * step;
  state.seed = 0xfedcba9876543210u;
  state.data_group = 400;
  state.global_batch_size = 12;
  state.frozen_crc32c = 0xdeadbeef;
  state.initial_crc32c = 0xfeedface;
  state.eval_step = step - 2;
  state.best_eval_loss = 1.0 / 7.0;
  state.best_step = step - 3;
  state.best_metric = "eval_code_acc";
  state.evals_without_better = 5;
  state.loss_scale = 1.0 / 3.0;
  state.loss_scale_good_steps = 17;
  state.last_loss = 2.0000000000000004;
  state.first_loss = 1e300;
  state.recent_losses = {1.0 / 3.0, 5e-324, 1e300};
  state.spikes_in_a_row = 2;
  state.back_to = 40;
  state.times_back = 2;
  state.bad_samples = {0, int64_t{1} << 40};
  state.bad_eval_samples = {7};
  return state;
}

// Saves as a run with bounds.size() - 1 ranks.
inline std::vector<absl::Status> SaveWith(const std::vector<int64_t>& bounds,
                                          const std::string& output_dir,
                                          int64_t step, int keep = 0,
                                          float shift = 0.0f) {
  return OnRanks(bounds.size() - 1, [&](ProcessGroup& group) {
    FakeRun run(group.rank(), bounds);
    run.SetValues(shift);
    return SaveCheckpoint({output_dir, StateAt(step), keep}, run.Parts(group));
  });
}

inline absl::Status FirstError(const std::vector<absl::Status>& statuses) {
  for (const absl::Status& status : statuses) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_CHECKPOINT_CHECKPOINT_TESTING_H_
