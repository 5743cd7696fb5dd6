// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_SHARDING_NOTE_H_
#define CAPSTAN_TRAINER_SESSION_SHARDING_NOTE_H_

#include <google/protobuf/message.h>

#include <string>

#include "cluster/launch/rank_info.h"

namespace capstan {

// Returns what to set so that a run on GPUs of several hosts gathers its shards
// within each, if `strategy`, the config of its strategy, has a field
// shard_group_size and doesn't set it; otherwise "".
std::string ShardingNote(const google::protobuf::Message& strategy,
                         const RankInfo& rank);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_SHARDING_NOTE_H_
