// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/sharding_note.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <google/protobuf/dynamic_message.h>
#include <gtest/gtest.h>

#include <memory>

namespace capstan {
namespace {

using ::testing::HasSubstr;

// A strategy's config with one field.
class ShardingNoteTest : public ::testing::Test {
 protected:
  void Make(const std::string& field) {
    google::protobuf::FileDescriptorProto file;
    file.set_name("test.proto");
    auto* const type = file.add_message_type();
    type->set_name("Config");
    auto* const made = type->add_field();
    made->set_name(field);
    made->set_number(1);
    made->set_type(google::protobuf::FieldDescriptorProto::TYPE_INT32);
    const auto* const descriptor = pool_.BuildFile(file)->message_type(0);
    field_ = descriptor->field(0);
    config_.reset(factory_.GetPrototype(descriptor)->New());
  }
  static RankInfo Ranks(int world_size, int of_host, int nodes) {
    RankInfo rank;
    rank.world_size = world_size;
    rank.local_world_size = of_host;
    rank.nodes = nodes;
    return rank;
  }

  google::protobuf::DescriptorPool pool_;
  google::protobuf::DynamicMessageFactory factory_;
  const google::protobuf::FieldDescriptor* field_ = nullptr;
  std::unique_ptr<google::protobuf::Message> config_;
};

TEST_F(ShardingNoteTest, ProposesAHostsRanks) {
  Make("shard_group_size");
  EXPECT_THAT(ShardingNote(*config_, Ranks(32, 8, 4)),
              HasSubstr("all 32 ranks share one copy of the model"));
  EXPECT_THAT(ShardingNote(*config_, Ranks(32, 8, 4)),
              HasSubstr("strategy.shard_group_size=8 "));
  EXPECT_EQ(ShardingNote(*config_, Ranks(8, 8, 1)), "");
  EXPECT_EQ(ShardingNote(*config_, Ranks(4, 1, 4)), "");
  EXPECT_EQ(ShardingNote(*config_, Ranks(7, 2, 4)), "") << "uneven hosts";
  config_->GetReflection()->SetInt32(config_.get(), field_, 32);
  EXPECT_EQ(ShardingNote(*config_, Ranks(32, 8, 4)), "") << "chosen";
}

TEST_F(ShardingNoteTest, OnlyOfStrategiesThatHaveGroups) {
  Make("bucket_cap");
  EXPECT_EQ(ShardingNote(*config_, Ranks(32, 8, 4)), "");
}

}  // namespace
}  // namespace capstan
