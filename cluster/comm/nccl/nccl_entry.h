// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_NCCL_NCCL_ENTRY_H_
#define CAPSTAN_CLUSTER_COMM_NCCL_NCCL_ENTRY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cluster/comm/gpu_tools.h"
#include "cluster/launch/rank_info.h"
#include "plugins/sdk/process_group.h"

namespace capstan {

// The symbol capstan_nccl_v1 of libcapstan_nccl.so. It is data, so that it can
// be checked before any of the library's code runs.
struct NcclEntry {
  // CAPSTAN_SDK_HASH of the build; a library of another build is rejected.
  const char* sdk_hash;
  // Claims GPU info.GpuIndex() and joins the ranks if there are several.
  // Doesn't throw.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> (*create)(const RankInfo& info);
  const GpuTools* tools;
  // GpuConnection() of what `create` has made.
  std::string (*connection)();
};

constexpr char kNcclLibrary[] = "libcapstan_nccl.so";
constexpr char kNcclEntrySymbol[] = "capstan_nccl_v1";

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_NCCL_NCCL_ENTRY_H_
