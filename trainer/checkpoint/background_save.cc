// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/background_save.h"

#include <pthread.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"

namespace capstan {

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::Begin(std::function<absl::Status(Shared*)> work) {
  std::packaged_task<absl::Status()> task(
      [shared = shared_, work = std::move(work)] {
        pthread_setname_np(pthread_self(), "save-write");
        return CatchAll([&] { return work(shared.get()); });
      });
  work_ = task.get_future();
  thread_ = std::thread(std::move(task));
}

absl::Status BackgroundSave::Await() {
  if (!work_.valid()) return status_;
  status_.Update(work_.get());
  thread_.join();
  return status_;
}

bool BackgroundSave::AwaitUntil(
    std::chrono::steady_clock::time_point deadline) {
  if (!work_.valid()) return true;
  if (work_.wait_until(deadline) != std::future_status::ready) {
    thread_.detach();
    return false;
  }
  Await().IgnoreError();
  return true;
}

bool BackgroundSave::written() {
  return save_.has_value() && !save_->completing && status().ok() &&
         !work_.valid();
}

absl::Status BackgroundSave::status() {
  if (work_.valid() &&
      work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
    return Await();
  }
  return status_;
}

bool BackgroundSave::busy() {
  return save_.has_value() && status().ok() && work_.valid();
}

void BackgroundSave::Prepare(const CheckpointParts& parts) {
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  const int64_t bytes = PieceLayout(pieces).bytes;
  const at::Device device = DeviceOf(pieces);
  const auto reserve = [bytes, device](Shared* shared) {
    // If this fails, the first save reports it.
    shared->snapshot.Reserve(bytes, device).IgnoreError();
    return absl::OkStatus();
  };
  if (device.is_cpu()) {
    Begin(reserve);
  } else {
    // Pinning would hold up the first steps' launches.
    reserve(shared_.get()).IgnoreError();
  }
}

void BackgroundSave::Complete() {
  if (!written()) return;
  save_->completing = true;
  if (save_->rank != 0) return;
  Begin([](Shared* shared) {
    return CommitSave(shared->save->request, shared->save->manifest);
  });
}

void BackgroundSave::CompleteAlone(std::chrono::milliseconds limit,
                                   std::chrono::milliseconds own_limit) {
  const auto now = std::chrono::steady_clock::now();
  if (!AwaitUntil(now + own_limit)) return;
  if (!save_.has_value() || !status_.ok() || save_->rank != 0) return;
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!save_->completing &&
         !AllHaveWritten(save_->request.temporary(), save_->world_size)) {
    if (std::chrono::steady_clock::now() >= deadline) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  Complete();
  AwaitUntil(now + own_limit);
}

absl::Status BackgroundSave::Start(const SaveRequest& request,
                                   const CheckpointParts& parts) {
  CAPSTAN_RETURN_IF_ERROR(Settle(*parts.group));
  return CatchAll([&] { return StartAfter(request, parts); });
}

absl::Status BackgroundSave::StartAfter(SaveRequest request,
                                        const CheckpointParts& parts) {
  ProcessGroup& group = *parts.group;
  const std::vector<StatePiece> pieces = OwnedPieces(parts);
  Await().IgnoreError();  // Prepare, which has no errors
  CAPSTAN_RETURN_IF_ERROR(BeginTogether(&request, BytesOf(pieces), group));
  Save save;
  save.request = request;
  save.rank = group.rank();
  save.world_size = group.size();
  absl::Status status = CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(shared_->snapshot.Take(pieces));
    if (save.rank == 0) {
      save.manifest = ManifestFrame(request.train_state, parts);
    }
    return absl::OkStatus();
  });
  status = Agree(group, status,
                 [](int) { return std::string("copy its state to save it"); });
  if (!status.ok()) {
    if (save.rank == 0) GiveUpSave(request);
    return status;
  }
  save_ = std::move(save);
  Begin([](Shared* shared) {
    const Save& save = *shared->save;
    return WriteRank(save.request.temporary(), save.rank, save.world_size,
                     shared->snapshot.pieces());
  });
  return absl::OkStatus();
}

absl::Status BackgroundSave::Settle(ProcessGroup& group) {
  if (!save_.has_value()) return absl::OkStatus();
  const absl::Status status = CatchAll([&] { return SettleTogether(group); });
  save_.reset();
  return status;
}

absl::Status BackgroundSave::SettleTogether(ProcessGroup& group) {
  const SaveRequest& request = save_->request;
  if (!save_->completing) {
    const absl::Status status = Agree(group, Await(), [&](int rank) {
      return absl::StrCat("write ", request.temporary(), "/",
                          RankFileName(rank, group.size()));
    });
    if (!status.ok()) {
      if (group.rank() == 0) GiveUpSave(request);
      return status;
    }
    Complete();
  }
  const absl::Status status = Agree(group, Await(), [&](int) {
    return absl::StrCat("complete ", request.folder());
  });
  if (!status.ok() && group.rank() == 0) GiveUpSave(request);
  return status;
}

}  // namespace capstan
