// SPDX-License-Identifier: Apache-2.0
//
// Expands SLURM's abbreviated lists.
#ifndef CAPSTAN_CLUSTER_LAUNCH_SLURM_LISTS_H_
#define CAPSTAN_CLUSTER_LAUNCH_SLURM_LISTS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// Host names of a node list, in its order: "n[0-1,05-07],x3" is n0, n1, n05,
// n06, n07, x3. A name may have several brackets. INVALID_ARGUMENT with what
// is wrong, to follow the name of the variable, for other texts and for more
// than 65,536 hosts.
absl::StatusOr<std::vector<std::string>> ExpandNodeList(absl::string_view list);

// Tasks on each node: "2(x3),1" is 2, 2, 2, 1. Errors as above.
absl::StatusOr<std::vector<int>> ExpandTasksPerNode(absl::string_view list);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_SLURM_LISTS_H_
