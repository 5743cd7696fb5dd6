// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/backend_error.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace capstan {

namespace {

// What NCCL itself says (ncclGetLastError), which c10d puts on a line after the
// rest; "" if it says nothing.
std::string NcclText(absl::string_view what) {
  constexpr absl::string_view kBefore = "Last error:\n";
  const size_t at = what.find(kBefore);
  if (at == absl::string_view::npos) return "";
  what.remove_prefix(at + kBefore.size());
  return std::string(
      absl::StripAsciiWhitespace(what.substr(0, what.find('\n'))));
}

}  // namespace

std::string BackendMessage(absl::string_view what) {
  const std::string nccl = NcclText(what);
  what = what.substr(0, what.find('\n'));
  // Gloo's messages begin with its source location: "[..pair.cc:534]
  // Connection".
  if (absl::StartsWith(what, "[")) {
    const size_t end = what.find("] ");
    if (end != absl::string_view::npos) what.remove_prefix(end + 2);
  }
  // ".. [10.0.0.2]:4711. This is typically caused by .."
  what = what.substr(0, what.find(". This is typically"));
  // NCCL's "was aborted on rank 1. " may be followed by a reason.
  what = absl::StripTrailingAsciiWhitespace(what);
  absl::ConsumeSuffix(&what, ".");
  return nccl.empty() || absl::StrContains(what, nccl)
             ? std::string(what)
             : absl::StrCat(what, ": ", nccl);
}

bool IsTimeout(absl::string_view message) {
  const std::string lower = absl::AsciiStrToLower(message);
  return absl::StrContains(lower, "timed out") ||
         absl::StrContains(lower, "timeout");
}

bool IsOutOfMemory(absl::string_view what) {
  return absl::StrContains(absl::AsciiStrToLower(what), "out of memory");
}

absl::Status NcclOutOfMemory(int rank, int gpu) {
  return absl::ResourceExhaustedError(
      absl::StrCat("rank ", rank, ": GPU ", gpu,
                   " has no memory left for NCCL's buffers: end what else ",
                   "runs on it, or lower launch.nccl.buffer_mib"));
}

}  // namespace capstan
