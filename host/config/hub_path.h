// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_CONFIG_HUB_PATH_H_
#define CAPSTAN_HOST_CONFIG_HUB_PATH_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

enum class HubKind { kModel, kDataset };

// "hf:OWNER/NAME", .. : of the Hugging Face Hub.
bool IsHubPath(absl::string_view text);

// hf:OWNER/NAME[@REVISION][/FILE] as a path in Hugging Face's cache
// (HF_HUB_CACHE, HF_HOME/hub, XDG_CACHE_HOME/huggingface/hub,
// ~/.cache/huggingface/hub), as huggingface_hub lays it out:
// models--OWNER--NAME (datasets--..) with refs/REVISION, a file that holds a
// commit, and snapshots/COMMIT. REVISION is a branch ("main"), a tag or a
// commit; FILE a file, a folder or a pattern. "hf:datasets/OWNER/NAME" is a
// data set whatever `kind`.
//
// A single file that is there is used. All else goes through the program
// `hf download`, which knows what is missing and is quick when nothing is, with
// this process's environment and its output on standard error; waits until it
// ends. Where HF_HUB_OFFLINE is set or `hf` can't be run, what is there is used
// as it is: a line on standard error says how many files, and a download that
// hasn't ended is an error. Other errors say what to install or to set.
absl::StatusOr<std::string> ResolveHubPath(absl::string_view text,
                                           HubKind kind);

}  // namespace capstan

#endif  // CAPSTAN_HOST_CONFIG_HUB_PATH_H_
