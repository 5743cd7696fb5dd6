// SPDX-License-Identifier: Apache-2.0
//
// CPU time of reading: opening a file of the original's size, and batches of
// 512 in random order, on one thread.
//  ad_history_bench [histories.hdf5]
// Without a file it makes a temporary one of random walks.
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <iostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "datasets/ad_history/ad_history.h"
#include "datasets/darkroom/history_file.h"

namespace capstan::ad_history {
namespace {

constexpr int64_t kSteps = 1040;
constexpr int64_t kStreams = 100;
constexpr int64_t kBatch = 512;
constexpr int kBatches = 400;

// CPU time of this process, independent of other load.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

absl::Status MakeFile(const std::string& path) {
  auto writer = darkroom::HistoryWriter::Create(path);
  if (!writer.ok()) return writer.status();
  const darkroom::Room room;
  for (int task = 0; task < 81; ++task) {
    const darkroom::Task goal =
        darkroom::MakeTask(darkroom::Variant::kGoals, room, task);
    darkroom::Darkroom rooms(room, std::vector<darkroom::Task>(kStreams, goal));
    darkroom::History history;
    history.steps = kSteps;
    history.streams = kStreams;
    std::vector<uint8_t> actions(kStreams), rewards(kStreams);
    for (int64_t step = 0; step < kSteps; ++step) {
      for (const darkroom::Cell& cell : rooms.states()) {
        history.states.insert(history.states.end(), {cell.row, cell.column});
      }
      for (int64_t i = 0; i < kStreams; ++i) {
        actions[i] = RandomBelow(task, step * kStreams + i, darkroom::kActions);
      }
      rooms.Step(actions.data(), rewards.data());
      history.actions.insert(history.actions.end(), actions.begin(),
                             actions.end());
      history.rewards.insert(history.rewards.end(), rewards.begin(),
                             rewards.end());
      history.dones.insert(history.dones.end(), kStreams, rooms.done());
      if (rooms.done()) rooms.Reset();
      for (const darkroom::Cell& cell : rooms.states()) {
        history.next_states.insert(history.next_states.end(),
                                   {cell.row, cell.column});
      }
    }
    const absl::Status status = (*writer)->Write(task, history);
    if (!status.ok()) return status;
  }
  return (*writer)->Commit();
}

absl::Status Run(std::string path) {
  if (path.empty()) {
    path = (std::filesystem::temp_directory_path() / "ad_history_bench.hdf5")
               .string();
    const absl::Status status = MakeFile(path);
    if (!status.ok()) return status;
  }
  for (const Config::Mode mode : {Config::PLAIN, Config::COMPRESSED}) {
    Config config;
    config.set_path(path);
    config.set_mode(mode);
    double start = Seconds();
    const auto reader = AdHistory::Create(config);
    if (!reader.ok()) return reader.status();
    std::printf("%s: %lld samples, opened in %.3f s\n",
                Config::Mode_Name(mode).c_str(),
                static_cast<long long>((*reader)->size()), Seconds() - start);
    std::vector<int64_t> indices(kBatch);
    Batch batch;
    start = Seconds();
    for (int b = 0; b < kBatches; ++b) {
      for (int64_t i = 0; i < kBatch; ++i) {
        indices[i] = PermutedIndex(1, b * kBatch + i, (*reader)->size());
      }
      const absl::Status status = (*reader)->Read(indices, &batch);
      if (!status.ok()) return status;
    }
    std::printf("  a batch of %lld: %.3f ms\n", static_cast<long long>(kBatch),
                (Seconds() - start) / kBatches * 1e3);
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace capstan::ad_history

int main(int argc, char** argv) {
  const absl::Status status = capstan::ad_history::Run(argc > 1 ? argv[1] : "");
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
