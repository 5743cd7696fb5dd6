// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <new>
#include <string>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/limits.h"
#include "base/lost_peer.h"

namespace capstan {
namespace {

constexpr char kFieldPayload[] = "capstan/field";

std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// Whether a library of CUDA's says that a GPU's memory isn't enough; LibTorch
// has an exception of its own for its allocator only. CUDA: "CUDA error: out of
// memory", cuBLAS: "CUBLAS_STATUS_ALLOC_FAILED", cuDNN: the same or
// "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", NCCL in a later line:
// "Cuda failure 2 'out of memory'".
bool IsMemoryOfGpu(absl::string_view what) {
  for (const char* const sign :
       {"CUDA error: out of memory", "CUDA driver error: out of memory",
        "Cuda failure 'out of memory'", "Cuda failure 2 'out of memory'",
        "CUDA_ERROR_OUT_OF_MEMORY", "_STATUS_ALLOC_FAILED",
        "_DEVICE_ALLOCATION_FAILED"}) {
    if (absl::StrContains(what, sign)) return true;
  }
  return false;
}

}  // namespace

CommunicationError::~CommunicationError() = default;

absl::Status FieldError(absl::string_view field, absl::string_view problem) {
  absl::Status status = absl::InvalidArgumentError(problem);
  status.SetPayload(kFieldPayload, absl::Cord(field));
  return status;
}

absl::optional<std::string> FieldOf(const absl::Status& status) {
  absl::optional<absl::Cord> field = status.GetPayload(kFieldPayload);
  if (!field.has_value()) return absl::nullopt;
  return std::string(*field);
}

absl::Status WithMessage(const absl::Status& status,
                         absl::string_view message) {
  absl::Status other(status.code(), message);
  status.ForEachPayload(
      [&other](absl::string_view url, const absl::Cord& payload) {
        other.SetPayload(url, payload);
      });
  return other;
}

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  return WithMessage(status, absl::StrCat(context, ": ", status.message()));
}

absl::Status CurrentExceptionToStatus() {
  try {
    throw;
  } catch (const CommunicationError& e) {
    return LostPeerError(FirstLine(e.what()));
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(FirstLine(e.what_without_backtrace()));
  } catch (const std::bad_alloc& e) {
    return absl::ResourceExhaustedError(
        absl::StrCat("out of memory", LimitText(ENOMEM)));
  } catch (const c10::Error& e) {
    const std::string what = FirstLine(e.what_without_backtrace());
    // The CPU allocator reports exhaustion as a plain c10::Error.
    if (absl::StrContains(what, "DefaultCPUAllocator") ||
        IsMemoryOfGpu(e.what_without_backtrace())) {
      return absl::ResourceExhaustedError(
          absl::StrCat(what, LimitText(ENOMEM)));
    }
    return absl::InternalError(what);
  } catch (const std::system_error& e) {
    // std::thread's: another thread than this user, or memory, may have.
    const int error = e.code().value();
    if (error != EAGAIN) return absl::InternalError(FirstLine(e.what()));
    return absl::ResourceExhaustedError(
        absl::StrCat("no thread can be started: ", FirstLine(e.what()),
                     LimitText(EAGAIN), LimitText(ENOMEM)));
  } catch (const std::exception& e) {
    if (IsMemoryOfGpu(e.what())) {
      return absl::ResourceExhaustedError(FirstLine(e.what()));
    }
    return absl::InternalError(FirstLine(e.what()));
  } catch (...) {
    return absl::InternalError("unknown exception");
  }
}

}  // namespace capstan
