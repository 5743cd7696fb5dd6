// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/sharding_note.h"

#include <google/protobuf/descriptor.h>

#include "absl/strings/str_cat.h"
#include "host/config/load_config.h"

namespace capstan {

std::string ShardingNote(const google::protobuf::Message& strategy,
                         const RankInfo& rank) {
  using google::protobuf::FieldDescriptor;
  const int of_host = rank.local_world_size;
  const FieldDescriptor* const field =
      SingleField(strategy, "shard_group_size", FieldDescriptor::TYPE_INT32);
  if (rank.nodes <= 1 || of_host <= 1 || rank.world_size % of_host != 0 ||
      field == nullptr ||
      strategy.GetReflection()->GetInt32(strategy, field) != 0) {
    return "";
  }
  return absl::StrCat(
      "all ", rank.world_size,
      " ranks share one copy of the model, so that each layer goes over the "
      "network: with strategy.shard_group_size=",
      of_host,
      " each host has a copy and only gradients leave it (`trainer plan` says "
      "whether that fits)");
}

}  // namespace capstan
