// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_LOST_PEER_H_
#define CAPSTAN_BASE_LOST_PEER_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan {

// That another rank is gone or has failed: UNAVAILABLE, with a mark that tells
// it from what files, networks or plugins find unavailable. It is never why a
// run fails, so that the launcher looks for another rank's error.
absl::Status LostPeerError(absl::string_view message);
bool IsLostPeer(const absl::Status& status);

// `status`, with the mark if it is UNAVAILABLE: for calls that only other ranks
// can make so.
absl::Status MarkLostPeer(absl::Status status);

}  // namespace capstan

#endif  // CAPSTAN_BASE_LOST_PEER_H_
