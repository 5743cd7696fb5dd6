// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <c10/util/Exception.h>

#include <new>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"

namespace capstan {
namespace {

constexpr char kFieldPayload[] = "capstan/field";

std::string FirstLine(absl::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
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

absl::Status Annotate(const absl::Status& status, absl::string_view context) {
  if (status.ok()) return status;
  absl::Status annotated(status.code(),
                         absl::StrCat(context, ": ", status.message()));
  status.ForEachPayload(
      [&annotated](absl::string_view url, const absl::Cord& payload) {
        annotated.SetPayload(url, payload);
      });
  return annotated;
}

absl::Status CurrentExceptionToStatus() {
  try {
    throw;
  } catch (const CommunicationError& e) {
    return LostPeerError(FirstLine(e.what()));
  } catch (const c10::OutOfMemoryError& e) {
    return absl::ResourceExhaustedError(FirstLine(e.what_without_backtrace()));
  } catch (const std::bad_alloc& e) {
    return absl::ResourceExhaustedError("out of memory");
  } catch (const c10::Error& e) {
    const std::string what = FirstLine(e.what_without_backtrace());
    // The CPU allocator reports exhaustion as a plain c10::Error.
    if (what.find("DefaultCPUAllocator") != std::string::npos) {
      return absl::ResourceExhaustedError(what);
    }
    return absl::InternalError(what);
  } catch (const std::exception& e) {
    return absl::InternalError(FirstLine(e.what()));
  } catch (...) {
    return absl::InternalError("unknown exception");
  }
}

}  // namespace capstan
