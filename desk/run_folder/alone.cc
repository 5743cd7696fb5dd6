// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/alone.h"

#include "absl/strings/str_cat.h"

namespace capstan {

absl::Status CheckAlone(absl::string_view command, const Place& place) {
  if (place.Alone()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      command,
      " begins a run on one host, but is one of several processes or hosts (",
      PlaceText(place.info),
      "): start it once, without RANK and WORLD_SIZE, and with --set "
      "launch.nodes=1 if the run had more"));
}

}  // namespace capstan
