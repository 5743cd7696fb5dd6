// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/settle_run.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/progress.h"
#include "trainer/memory/memory_plan.h"
#include "trainer/session/compare_ranks.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/output_folder.h"
#include "trainer/session/schedule.h"

namespace capstan {
namespace {

// Settles the run's device: the least capable over all machines.
absl::Status SettleDevice(Session* session) {
  TrainJob& job = session->job;
  RunParts& parts = session->parts;
  if (!parts.precision->depends_on_device()) return absl::OkStatus();
  const int mine = parts.device.compute_capability;
  const std::vector<double> all = FromAllRanks(*session->group, mine);
  const int least = static_cast<int>(*std::min_element(all.begin(), all.end()));
  if (least == mine) return absl::OkStatus();
  parts.device.compute_capability = least;
  parts.precision_name = PrecisionName(session->config, parts);
  session->scaler = LossScaler(parts.policy().loss_scaling);
  const MemoryRequest memory = MemoryRequestOf(job, session->group->size());
  job.memory = PlanMemory(*parts.strategy, memory);
  return job.loaded.Locate(parts.strategy->Check(memory.strategy), "strategy");
}

// Whether all hosts see rank 0's output folder, before anything is trained.
absl::Status CheckShared(const Session& session) {
  ProcessGroup& group = *session.group;
  if (session.rank.nodes == 1) return absl::OkStatus();
  const std::string path =
      absl::StrCat(session.output_dir, "/.shared-", session.rank.run_key);
  absl::Status mine;
  if (group.rank() == 0) mine = WriteWholeFile(path, "");
  CAPSTAN_RETURN_IF_ERROR(Agree(group, mine, "write into the output folder"));
  // Opening the folder has an NFS client look again.
  std::error_code error;
  const std::filesystem::directory_iterator look(session.output_dir, error);
  if (!PathExists(path)) {
    mine = absl::FailedPreconditionError(
        absl::StrCat("rank ", group.rank(), " doesn't see rank 0's files in ",
                     session.output_dir,
                     ": output_dir must be a folder that all hosts share"));
  }
  mine = Agree(group, mine, "see rank 0's files in the output folder");
  if (group.rank() == 0) std::filesystem::remove(path, error);
  return mine;
}

// Under a launcher rank 0 chooses, and broadcasts.
absl::Status SettleOutputDir(Session* session) {
  HeldFolder& folder = session->folder;
  folder = session->job.folder;
  session->output_dir = folder.path;
  ProcessGroup& group = *session->group;
  if (!session->output_dir.empty()) {
    absl::Status here;
    // Ranks that are started again find it as it is now.
    if (group.rank() == 0) here = LookAtFolder(&folder).status;
    return Agree(group, here, "find its output folder");
  }
  absl::Status made;
  if (group.rank() == 0) {
    RunConfig config = session->config;
    // After a death the run goes on where it was.
    if (session->Restarted()) {
      config.mutable_train()->set_resume(Train::AUTO);
      const std::string chosen = NotedOutputFolder();
      if (!chosen.empty()) {
        config.set_output_dir(chosen);
        if (!PathExists(chosen)) made = WasDeleted(chosen);
      }
    }
    if (made.ok()) {
      absl::StatusOr<HeldFolder> held = PrepareOutputFolder(
          config, session->job.workspace_folder, session->rank.placed_by,
          session->Restarted() ? kLostHostPatience : kLockPatience);
      made = held.status();
      if (held.ok()) folder = *std::move(held);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(Agree(group, made, "make the output folder"));
  CAPSTAN_ASSIGN_OR_RETURN(session->output_dir, FromRank0(group, folder.path));
  // Any host's first rank may be rank 0 after a restart.
  NoteOutputFolder(session->output_dir);
  return absl::OkStatus();
}

// Each rank planned its own; a resumed run's depends on its folder.
absl::Status CompareBatches(const Session& session) {
  const std::vector<double> all = FromAllRanks(
      *session.group, static_cast<double>(session.job.batch.global_batch_size));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", rank, " has a global batch of ", all[rank], ", rank 0 one of ",
        all[0],
        ": all ranks must have the same config and see the same files "
        "in output_dir"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SettleRun(Session* session) {
  CAPSTAN_RETURN_IF_ERROR(CompareConfigs(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareParts(*session));
  CAPSTAN_RETURN_IF_ERROR(SettleDevice(session));
  CAPSTAN_RETURN_IF_ERROR(SettleOutputDir(session));
  CAPSTAN_RETURN_IF_ERROR(CheckShared(*session));
  CAPSTAN_RETURN_IF_ERROR(CompareBatches(*session));
  session->config_text = PrintConfig(session->config);
  session->max_steps =
      StepsOfRun(session->config.train(), session->parts.train_data->size(),
                 session->job.batch.global_batch_size);
  return absl::OkStatus();
}

}  // namespace capstan
