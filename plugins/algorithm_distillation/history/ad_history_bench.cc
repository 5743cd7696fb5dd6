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
#include "plugins/algorithm_distillation/darkroom.h"
#include "plugins/algorithm_distillation/darkroom/history_file.h"
#include "plugins/algorithm_distillation/darkroom/random_history_testing.h"
#include "plugins/algorithm_distillation/history/ad_history.h"

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
  const darkroom::Darkroom rooms(darkroom::Variant::kGoals, {});
  for (int task = 0; task < rooms.tasks(); ++task) {
    const darkroom::History history =
        darkroom::RandomHistory(rooms, task, kSteps, kStreams);
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
