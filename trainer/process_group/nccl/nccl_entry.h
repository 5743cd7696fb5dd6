// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_NCCL_ENTRY_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_NCCL_ENTRY_H_

#include <memory>

#include "absl/status/statusor.h"
#include "plugins/sdk/process_group.h"
#include "trainer/launcher/rank_info.h"

namespace capstan {

// What libcapstan_nccl.so exports, as capstan_nccl_v1: data, so that it can be
// checked before any of the library's code runs.
struct NcclEntry {
  // CAPSTAN_SDK_HASH of the build: a library of another build is refused.
  const char* sdk_hash;
  // Takes the GPU cuda:local_rank; joins the ranks if there are several. Does
  // not throw.
  absl::StatusOr<std::unique_ptr<ProcessGroup>> (*create)(const RankInfo& info);
};

constexpr char kNcclLibrary[] = "libcapstan_nccl.so";
constexpr char kNcclEntrySymbol[] = "capstan_nccl_v1";

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_NCCL_NCCL_ENTRY_H_
