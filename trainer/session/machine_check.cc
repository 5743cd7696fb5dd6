// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/machine_check.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/metrics/console.h"
#include "trainer/session/micro_batch.h"

namespace capstan {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

// Runs have taken up to a tenth less than was planned (ExpectedProcess).
constexpr double kLeastOfPlan = 0.9;

// Samples whose lengths are looked at.
constexpr int64_t kLookedThrough = 100000;

int64_t MeanLength(const DatasetReader& data) {
  const int64_t count = std::min(data.size(), kLookedThrough);
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += data.sample_length(i);
  return sum / count;
}

// What a rank has for tensors.
struct Room {
  int64_t bytes;
  std::string text;
};

Room RoomHere(bool on_gpu, int ranks_here) {
  if (on_gpu) {
    const int64_t gpu = LeastGpuMemory();
    return {gpu > 0 ? gpu : kNoLimit,
            absl::StrCat("a GPU here has ", ShortBytes(gpu))};
  }
  // RAM and swap, as far as this process may use them.
  const int64_t memory = HostMemory();
  const int64_t process = MostAddressSpace().value_or(kNoLimit);
  if (process < memory / ranks_here) {
    return {process, absl::StrCat("a process may take ", ShortBytes(process),
                                  " of address space (ulimit -v)")};
  }
  return {
      memory / ranks_here,
      absl::StrCat(
          "this machine has ", ShortBytes(memory), ", swap included",
          ranks_here == 1 ? "" : absl::StrCat(", for ", ranks_here, " ranks"))};
}

}  // namespace

absl::Status CheckRanks(int ranks_here) {
  const int cores = AvailableCores();
  const int most = kMostThreadsPerCore * cores;
  if (ranks_here <= most) return absl::OkStatus();
  return FieldError(
      "processes",
      absl::StrCat("is ", ranks_here, ", and this machine has ", cores,
                   " cores: set at most ", most,
                   "; as many as there are cores, or fewer, are fastest"));
}

absl::Status CheckTensors(const TrainJob& job, int world_size, int ranks_here) {
  MemoryRequest request = MemoryRequestOf(job, world_size);
  const int64_t mean = MeanLength(*job.parts.train_data);
  if (mean > 0) request.length = std::min(request.length, mean);
  // Whose plan is an upper bound.
  request.evaluation_length = 0;
  const Strategy& strategy = *job.parts.strategy;
  const auto least = [&](int64_t micro_batch) {
    request.samples = micro_batch;
    return kLeastOfPlan *
           static_cast<double>(Total(PlanMemory(strategy, request).at_peak));
  };
  const Room room = RoomHere(request.on_gpu, ranks_here);
  const int64_t asked = job.batch.micro_batch_size;
  // Step by step: the bytes of the largest sizes are no int64_t.
  int64_t looked_at = std::min<int64_t>(asked, 1024);
  double needed = least(looked_at);
  while (looked_at < asked && needed <= static_cast<double>(room.bytes)) {
    looked_at = std::min(2 * looked_at, asked);
    needed = least(looked_at);
  }
  if (needed <= static_cast<double>(room.bytes)) return absl::OkStatus();
  // What is sure to fit, unlike what isn't sure not to.
  int64_t fits = looked_at;
  while (fits > 0 && least(fits) > static_cast<double>(room.bytes) / 2) {
    fits /= 2;
  }
  return FieldError(
      "micro_batch_size",
      absl::StrCat(
          "is ", asked,
          looked_at < asked ? absl::StrCat(": already of ", looked_at)
                            : ", of which",
          " a rank's tensors take ", ShortBytes(static_cast<int64_t>(needed)),
          " at least, and ", room.text, ": ",
          fits > 0 ? absl::StrCat("about ", fits, " fits")
                   : "not even 1 fits; take a smaller model, shorter samples, "
                     "or more machines with a strategy that shards",
          " (`trainer plan` shows what takes it)"));
}

}  // namespace capstan
