// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/initial_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "host/config/load_config.h"
#include "plugins/sdk/lib/initial_values.h"
#include "plugins/sdk/memory.h"
#include "trainer/checkpoint/checkpoint.h"

namespace capstan {
namespace {

// The files of weights in the folder of the model that training starts from,
// with their sizes and times; "" without one.
std::string InitialFiles(const std::string& folder) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  for (fs::directory_iterator file(folder, error), end; !error && file != end;
       file.increment(error)) {
    if (file->path().extension() != ".safetensors") continue;
    struct stat info = {};
    stat(file->path().c_str(), &info);
    files.push_back(absl::StrCat(
        file->path().filename().string(), " ", info.st_ino, " ", info.st_size,
        " ", info.st_mtim.tv_sec, " ", info.st_mtim.tv_nsec));
  }
  std::sort(files.begin(), files.end());
  return absl::StrJoin(files, "\n");
}

// A checkpoint doesn't have the initial weights, so that a resumed run reads
// them anew; and each rollout does.
absl::Status CheckSame(Session* session) {
  const std::string folder = BaseModelOf(session->config).folder;
  std::string files = InitialFiles(folder);
  if (session->initial_weights_known) {
    if (files == session->initial_files) return absl::OkStatus();
    return absl::FailedPreconditionError(absl::StrCat(
        "model: the weights in ", folder,
        ", with which this run compares, have been replaced since it began: "
        "put those back, and go on"));
  }
  uint32_t& known = session->state.initial_crc32c;
  CAPSTAN_ASSIGN_OR_RETURN(
      const uint32_t mine,
      TrainedChecksum(*session->parts.model, session->state.seed));
  if (known != 0 && known != mine) {
    return absl::FailedPreconditionError(absl::StrCat(
        "model: its initial weights, with which this run compares, aren't "
        "those that the run in ",
        session->resumed_from,
        " was started with: name the same pretrained model as then"));
  }
  known = mine;
  session->initial_files = std::move(files);
  session->initial_weights_known = true;
  return absl::OkStatus();
}

void Renew(OptimizerShard& shard) {
  if (shard.working.defined()) shard.working.copy_(shard.master);
}

}  // namespace

absl::Status WithInitialWeights(Session* session,
                                const std::function<absl::Status()>& forwards) {
  const absl::Span<OptimizerShard> shards =
      session->parts.strategy->OptimizerShards();
  std::vector<at::Tensor> masters;
  session->BeforeChange();
  const absl::Status filled = CatchAll([&]() -> absl::Status {
    CAPSTAN_RETURN_IF_ERROR(CheckSame(session));
    const MemoryScope scope(MemoryCategory::kMasters);
    for (const OptimizerShard& shard : shards) {
      masters.push_back(shard.master.clone());
    }
    for (OptimizerShard& shard : shards) {
      CAPSTAN_RETURN_IF_ERROR(FillInitialValues(*session->parts.model,
                                                session->state.seed,
                                                shard.ranges, shard.master));
      Renew(shard);
    }
    return absl::OkStatus();
  });
  const auto restore = [&] {
    // The device may still be copying from masters in host memory.
    const at::Device device = session->group->device();
    if (!device.is_cpu()) at::zeros({}, device).item();
    for (size_t i = 0; i < masters.size(); ++i) {
      shards[i].master.copy_(masters[i]);
      Renew(shards[i]);
    }
  };
  absl::Status status =
      Agree(*session->group, filled, "read the initial weights");
  if (status.ok()) status = session->Publish(PublishCause::kRestored);
  if (status.ok()) status = CatchAll(forwards);
  restore();
  // The others may be in the collectives of a forward.
  if (!status.ok()) return status;
  return session->Publish(PublishCause::kRestored);
}

}  // namespace capstan
