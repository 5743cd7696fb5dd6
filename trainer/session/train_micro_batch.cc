// SPDX-License-Identifier: Apache-2.0
//
// micro_batch_size: AUTO: a step is tried before the first one.
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "trainer/data/batch_slot.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/train_loop.h"

namespace capstan {
namespace {

// Samples among which the longest is looked for.
constexpr int64_t kLookedThrough = 100000;

int64_t LongSample(const DatasetReader& data) {
  int64_t longest = 0;
  int64_t most = -1;
  for (int64_t i = 0; i < std::min(data.size(), kLookedThrough); ++i) {
    const int64_t length = data.sample_length(i);
    if (length <= most) continue;
    most = length;
    longest = i;
  }
  return longest;
}

}  // namespace

absl::Status TrainLoop::SettleMicroBatch() {
  const std::vector<int64_t> sizes =
      MicroBatchSizes(job_->batch.global_batch_size, group_->size());
  // Machines may differ in what they have planned.
  const std::vector<double> planned =
      FromAllRanks(static_cast<double>(job_->batch.micro_batch_size));
  int64_t size =
      static_cast<int64_t>(*std::min_element(planned.begin(), planned.end()));
  const int64_t first = size;
  for (bool fits = false;;) {
    CAPSTAN_RETURN_IF_ERROR(AgreeOnStop(*group_, StopStatus(), "try a step"));
    UseMicroBatch(size);
    CAPSTAN_RETURN_IF_ERROR(TryMicroBatch(&fits));
    if (fits) break;
    const auto next =
        std::find_if(sizes.begin(), sizes.end(),
                     [size](int64_t smaller) { return smaller <= size / 2; });
    if (next == sizes.end()) {
      return job_->loaded.Locate(
          absl::ResourceExhaustedError(
              "AUTO: there isn't memory for one sample: see `trainer plan` for "
              "strategies that need less, or set "
              "train.activation_checkpointing"),
          "batch.micro_batch_size");
    }
    size = *next;
  }
  micro_batch_note_ =
      absl::StrCat("micro_batch_size: AUTO is ", size, " x ", group_->size(),
                   " ranks x accumulation ", job_->batch.accumulation,
                   size == first ? ", as planned; a trial step fits"
                                 : absl::StrCat(": ", first,
                                                " was planned, "
                                                "but was out of memory"));
  return absl::OkStatus();
}

void TrainLoop::UseMicroBatch(int64_t size) {
  job_->batch = WithMicroBatch(job_->batch, size, group_->size());
  job_->memory =
      PlanMemory(*parts_.strategy, MemoryRequestOf(*job_, group_->size()));
}

absl::Status TrainLoop::TryMicroBatch(bool* fits) {
  const absl::Status mine = TryForwardAndBackward();
  // Its end is what the others get to know.
  if (absl::IsUnavailable(mine) || !collectives_done_) return mine;
  const bool full = absl::IsResourceExhausted(mine);
  double ranks[] = {full ? 1.0 : 0.0, !full && !mine.ok() ? 1.0 : 0.0};
  try {
    group_->AllReduceHost(absl::MakeSpan(ranks));
  } catch (...) {
    return CurrentExceptionToStatus();
  }
  *fits = ranks[0] == 0;
  if (ranks[1] == 0) return absl::OkStatus();
  return AgreeOnError(full ? absl::OkStatus() : mine, "try a step");
}

absl::Status TrainLoop::TryForwardAndBackward() {
  absl::Status status;
  collectives_done_ = false;
  try {
    parts_.strategy->BeginMicroStep(0, 1);
    const std::vector<int64_t> samples(job_->batch.micro_batch_size,
                                       LongSample(*parts_.train_data));
    Batch batch;
    status = parts_.train_data->Read(samples, &batch);
    if (status.ok()) {
      SetSamplePositions(samples, &batch);
      for (auto& [name, tensor] : batch) tensor = tensor.to(group_->device());
      info_.totals = parts_.objective->StepTotals(batch, info_);
      Backward(Forward(batch).sum);
    }
  } catch (...) {
    status = CurrentExceptionToStatus();
  }
  if (absl::IsUnavailable(status)) return status;
  try {
    parts_.strategy->FinishBackward();
    collectives_done_ = true;
  } catch (...) {
    if (status.ok()) status = CurrentExceptionToStatus();
  }
  return status;
}

}  // namespace capstan
