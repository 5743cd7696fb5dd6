// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/explain_failure.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error_code.h"
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
std::string Remedy(const RunPlan& plan) {
  const BatchPlan& batch = plan.job.batch;
  if (batch.micro_batch_size > 1) {
    return absl::StrCat("lower batch.micro_batch_size (now ",
                        batch.micro_batch_size, ")");
  }
  if (plan.config.train().activation_checkpointing() == Train::NONE) {
    return "set train.activation_checkpointing";
  }
  return "use more ranks with a strategy that shards (fsdp)";
}

// train.memory_snapshot_at_oom: writes this rank's file, and says where it is.
std::string SnapshotText(const RunPlan& plan) {
  const GpuTools* const tools = TheGpuTools();
  if (!plan.config.train().memory_snapshot_at_oom() || tools == nullptr) {
    return "";
  }
  const std::string path = absl::StrCat(
      plan.output_dir, "/memory_snapshot_rank", plan.group->rank(), ".pickle");
  const absl::Status written =
      CatchAll([&] { return ReplaceFile(path, tools->memory_snapshot()); });
  if (!written.ok()) {
    return absl::StrCat("; no memory snapshot: ", written.message());
  }
  return absl::StrCat("; ", path,
                      " shows what was allocated, in pytorch.org/memory_viz");
}

absl::Status Explain(const absl::Status& status, const RunPlan& plan,
                     const std::string& where, const std::string& remedy) {
  const MemoryPlan& memory = plan.job.memory;
  return Annotate(
      status,
      absl::StrCat(
          "rank ", plan.group->rank(), " is out of memory", where,
          memory.activations_known
              ? absl::StrCat(" (`trainer plan` expects ",
                             MibText(Total(memory.at_peak)), " of tensors)")
              : "",
          "; ", remedy, SnapshotText(plan)));
}

// What the GPU answers to another call; "": nothing wrong.
std::string ErrorOfGpu() {
  if (!at::globalContext().hasCUDA() ||
      !at::detail::getCUDAHooks().hasPrimaryContext(
          at::detail::getCUDAHooks().getCurrentDevice())) {
    return "";
  }
  try {
    const c10::impl::VirtualGuardImpl cuda(at::kCUDA);
    c10::Event(at::kCUDA).record(cuda.getStream(cuda.getDevice()));
    return "";
  } catch (...) {
    return std::string(CurrentExceptionToStatus().message());
  }
}

}  // namespace

absl::Status ExplainMemory(const absl::Status& status, const Session& session,
                           int64_t micro_batch) {
  if (!absl::IsResourceExhausted(status)) return status;
  const absl::string_view phase(session.phase);
  return WithCode(
      Explain(status, session,
              absl::StrCat(
                  phase.empty() ? "" : absl::StrCat(" in ", phase),
                  micro_batch >= 0
                      ? absl::StrCat(" of micro-batch ", micro_batch + 1,
                                     " of ", session.job.batch.accumulation)
                      : ""),
              Remedy(session)),
      "memory/full");
}

absl::Status ExplainMemoryOfSetUp(const absl::Status& status,
                                  const Session& session) {
  if (!absl::IsResourceExhausted(status)) return status;
  return WithCode(
      Explain(status, session, " at set-up",
              "use more ranks with a strategy that shards (fsdp), or keep "
              "state in host memory (train.offload, fsdp's cpu_offload)"),
      "memory/full");
}

bool GpuIsLost() { return !ErrorOfGpu().empty(); }

absl::Status ExplainLostGpu(const absl::Status& status, const Session& session,
                            bool set_up) {
  if (status.ok() || session.group == nullptr) return status;
  const std::string error = ErrorOfGpu();
  if (error.empty()) return status;
  const ProcessGroup& group = *session.group;
  return WithCode(
      absl::InternalError(absl::StrCat(
          "rank ", group.rank(), ": GPU ", int{group.device().index()},
          " has failed ",
          !set_up            ? std::string("at set-up")
          : session.GoesOn() ? absl::StrCat("in step ", session.state.step + 1)
                             : absl::StrCat("after step ", session.state.step),
          ": ", error,
          "; start again with train.resume=AUTO; if it fails again, in the "
          "same "
          "step: CUDA_LAUNCH_BLOCKING=1 tells which call it is, and "
          "compute-sanitizer why; in others: dmesg (lines with Xid) and "
          "nvidia-smi "
          "-q tell whether the card is at fault")),
      "gpu/failed");
}

}  // namespace capstan
