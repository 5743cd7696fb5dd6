// SPDX-License-Identifier: Apache-2.0
#include "base/lost_peer.h"

#include <utility>

#include "absl/strings/cord.h"

namespace capstan {
namespace {

constexpr char kMark[] = "capstan/lost_peer";

}  // namespace

absl::Status LostPeerError(absl::string_view message) {
  return MarkLostPeer(absl::UnavailableError(message));
}

bool IsLostPeer(const absl::Status& status) {
  return absl::IsUnavailable(status) && status.GetPayload(kMark).has_value();
}

absl::Status MarkLostPeer(absl::Status status) {
  if (absl::IsUnavailable(status)) status.SetPayload(kMark, absl::Cord());
  return status;
}

}  // namespace capstan
