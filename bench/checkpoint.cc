// SPDX-License-Identifier: Apache-2.0
//
// How long a checkpoint takes: bench/checkpoint.py calls this.
//
//     bazel run //bench:checkpoint -- FOLDER save|load PARAMETERS
//
// `save` writes masters and AdamW's two moments of so many parameters, in
// tensors of a million, as one rank, and flushes them to disk; `load` reads the
// checkpoint that it has left in FOLDER. Prints seconds and CPU seconds.
#include "trainer/checkpoint/checkpoint.h"

#include <ATen/ops/empty.h>
#include <stdio.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/rank_info.h"
#include "trainer/checkpoint/save.h"

namespace capstan {
namespace {

constexpr int64_t kTensor = 1000 * 1000;

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// A tensor's random values, again and again: zeros might be stored as nothing.
at::Tensor Values(uint64_t key, int64_t numel) {
  const at::Tensor t = at::empty({numel});
  float* const values = t.mutable_data_ptr<float>();
  const int64_t first = std::min(kTensor, numel);
  FillNormal(key, 0, first, 0.0f, 0.02f, values);
  for (int64_t i = first; i < numel; i += first) {
    std::memcpy(values + i, values, std::min(first, numel - i) * sizeof(float));
  }
  return t;
}

// One rank's shard of everything.
struct Run {
  explicit Run(int64_t parameters) {
    OptimizerShard shard;
    for (int64_t begin = 0; begin < parameters; begin += kTensor) {
      const int64_t count = std::min(kTensor, parameters - begin);
      ParameterSpec spec;
      spec.name = absl::StrCat("tensor.", specs.size());
      spec.shape = {count};
      shard.ranges.push_back({static_cast<int>(specs.size()), 0, count, begin});
      specs.push_back(std::move(spec));
    }
    shard.master = Values(1, parameters);
    state.push_back({Values(2, parameters), Values(3, parameters)});
    shards.push_back(std::move(shard));
  }

  CheckpointParts Parts(ProcessGroup* group) {
    CheckpointParts parts;
    parts.specs = &specs;
    parts.shards = absl::MakeSpan(shards);
    parts.state = &state;
    parts.state_shapes = {{{"exp_avg"}, {}}, {{"exp_avg_sq"}, {}}};
    parts.owned = {{0, 0, shards[0].master.numel()}};
    parts.group = group;
    return parts;
  }

  std::vector<ParameterSpec> specs;
  std::vector<OptimizerShard> shards;
  std::vector<std::vector<at::Tensor>> state;
};

absl::Status Measure(const std::string& folder, bool save, int64_t parameters) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(RankInfo(), /*gpus=*/0));
  Run run(parameters);
  const CheckpointParts parts = run.Parts(group.get());
  const double cpu = CpuSeconds();
  const double begin = MonotonicSeconds();
  if (save) {
    TrainState state;
    state.step = 1;
    CAPSTAN_RETURN_IF_ERROR(SaveCheckpoint({folder, state, /*keep=*/1}, parts));
  } else {
    CAPSTAN_RETURN_IF_ERROR(
        LoadCheckpoint(CheckpointFolder(folder, 1), parts).status());
  }
  printf("{\"seconds\": %.6f, \"cpu\": %.6f}\n", MonotonicSeconds() - begin,
         CpuSeconds() - cpu);
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  int64_t parameters = 0;
  const std::string what = argc == 4 ? argv[2] : "";
  if ((what != "save" && what != "load") ||
      !absl::SimpleAtoi(argv[3], &parameters) || parameters < 1) {
    fprintf(stderr, "usage: checkpoint FOLDER save|load PARAMETERS\n");
    return 2;
  }
  const absl::Status status = Measure(argv[1], what == "save", parameters);
  if (status.ok()) return 0;
  fprintf(stderr, "checkpoint: %s\n", status.ToString().c_str());
  return 1;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
