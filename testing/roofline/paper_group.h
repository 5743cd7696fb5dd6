// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTING_ROOFLINE_PAPER_GROUP_H_
#define CAPSTAN_TESTING_ROOFLINE_PAPER_GROUP_H_

#include <memory>

#include "plugins/sdk/process_group.h"

namespace capstan {

// From now on this process is a run on paper (kernels/context/on_paper.h).
void SetOnPaper();

// `group`, whose other ranks aren't there (RankInfo::on_paper): its collectives
// are started and come to nothing, and what ranks tell each other in host
// memory is as if all said what this one says.
std::unique_ptr<ProcessGroup> CreatePaperGroup(
    std::unique_ptr<ProcessGroup> group);

}  // namespace capstan

#endif  // CAPSTAN_TESTING_ROOFLINE_PAPER_GROUP_H_
