// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/lost_gpu.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace {

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

bool GpuIsLost() { return !ErrorOfGpu().empty(); }

absl::Status ExplainLostGpu(const absl::Status& status, const Session& session,
                            bool set_up) {
  if (status.ok() || session.group == nullptr) return status;
  const std::string error = ErrorOfGpu();
  if (error.empty()) return status;
  const ProcessGroup& group = *session.group;
  return absl::InternalError(absl::StrCat(
      "rank ", group.rank(), ": GPU ", int{group.device().index()},
      " has failed ",
      !set_up            ? std::string("at set-up")
      : session.GoesOn() ? absl::StrCat("in step ", session.state.step + 1)
                         : absl::StrCat("after step ", session.state.step),
      ": ", error,
      "; start again with train.resume=AUTO; if it fails again, in the same "
      "step: CUDA_LAUNCH_BLOCKING=1 tells which call it is, and "
      "compute-sanitizer why; in others: dmesg (lines with Xid) and nvidia-smi "
      "-q tell whether the card is at fault"));
}

}  // namespace capstan
