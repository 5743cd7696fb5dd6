// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_NETWORK_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_NETWORK_H_

#include <string>

#include "absl/strings/string_view.h"

namespace capstan {

// Which network NCCL has chosen for traffic between hosts: "IB mlx5_0, mlx5_1",
// "sockets eth0", "Libfabric"; "" if it doesn't say. `log` is what NCCL 2.28
// writes with NCCL_DEBUG=INFO when it connects; it has no function that tells.
std::string NcclNetwork(absl::string_view log);

// The last few different warnings ("NCCL WARN") of such a log, which come
// before an error and say why, with "; " between them; those that `told` has
// are left out. "": there are none.
std::string NcclWarnings(absl::string_view log, absl::string_view told);

// What NCCL has written so far; "" unless somebody keeps it, who is asked by
// `log`.
std::string NcclLog();
void SetNcclLog(std::string (*log)());

// How this process's group on GPUs is connected: "NCCL 2.28.9", with several
// hosts "NCCL 2.28.9 over IB mlx5_0". "" until CreateProcessGroup has made it.
std::string GpuConnection();
void SetGpuConnection(const std::string& connection);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_NETWORK_H_
