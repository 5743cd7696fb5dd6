// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_NCCL_LOG_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_NCCL_LOG_H_

#include <string>

namespace capstan {

// Has NCCL write what it chooses into memory, unless the user has set
// NCCL_DEBUG or NCCL_DEBUG_FILE. Called before NCCL's first call, which reads
// the variables.
void KeepNcclLog();

// NcclEntry::connection. Called once NCCL is connected; unsets the variables
// that KeepNcclLog has set.
std::string NcclConnection();

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_NCCL_LOG_H_
