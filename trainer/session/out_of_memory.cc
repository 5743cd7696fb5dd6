// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/out_of_memory.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/gpu_tools.h"

namespace capstan {
namespace {

std::string MibText(int64_t bytes) {
  return absl::StrFormat("%.1f MiB",
                         static_cast<double>(bytes) / (int64_t{1} << 20));
}

// What takes less memory; at worst a machine with more.
std::string Remedy(const Session& session) {
  const BatchPlan& batch = session.job.batch;
  if (batch.micro_batch_size > 1) {
    return absl::StrCat("lower batch.micro_batch_size (now ",
                        batch.micro_batch_size, ")");
  }
  if (session.config.train().activation_checkpointing() == Train::NONE) {
    return "set train.activation_checkpointing";
  }
  return "use more ranks with a strategy that shards (fsdp)";
}

// train.memory_snapshot_at_oom: writes this rank's file, and says where it is.
std::string SnapshotText(const Session& session) {
  const GpuTools* const tools = TheGpuTools();
  if (!session.config.train().memory_snapshot_at_oom() || tools == nullptr) {
    return "";
  }
  const std::string path =
      absl::StrCat(session.output_dir, "/memory_snapshot_rank",
                   session.group->rank(), ".pickle");
  const absl::Status written =
      CatchAll([&] { return ReplaceFile(path, tools->memory_snapshot()); });
  if (!written.ok()) {
    return absl::StrCat("; no memory snapshot: ", written.message());
  }
  return absl::StrCat("; ", path,
                      " shows what was allocated, in pytorch.org/memory_viz");
}

absl::Status Explain(const absl::Status& status, const Session& session,
                     const std::string& where, const std::string& remedy) {
  const MemoryPlan& plan = session.job.memory;
  return Annotate(
      status,
      absl::StrCat(
          "rank ", session.group->rank(), " is out of memory", where,
          plan.activations_known
              ? absl::StrCat(" (`trainer plan` expects ",
                             MibText(Total(plan.at_peak)), " of tensors)")
              : "",
          "; ", remedy, SnapshotText(session)));
}

}  // namespace

absl::Status ExplainMemory(const absl::Status& status, const Session& session,
                           int64_t micro_batch) {
  if (!absl::IsResourceExhausted(status)) return status;
  const absl::string_view phase(session.phase);
  return Explain(
      status, session,
      absl::StrCat(phase.empty() ? "" : absl::StrCat(" in ", phase),
                   micro_batch >= 0
                       ? absl::StrCat(" of micro-batch ", micro_batch + 1,
                                      " of ", session.job.batch.accumulation)
                       : ""),
      Remedy(session));
}

absl::Status ExplainMemoryOfSetUp(const absl::Status& status,
                                  const Session& session) {
  if (!absl::IsResourceExhausted(status)) return status;
  return Explain(status, session, " at set-up",
                 "use more ranks with a strategy that shards (fsdp), or keep "
                 "state in host memory (train.offload, fsdp's cpu_offload)");
}

}  // namespace capstan
