// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "host/config/run_config.pb.h"
#include "trainer/session/run_parts.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(GpuSettingsTest, HaveNoEffectOnACpu) {
  Train train;
  DeviceFacts device;
  EXPECT_THAT(GpuSettingNotes(train, device), IsEmpty());
  train.set_tf32(true);
  train.set_memory_snapshot_at_oom(true);
  train.set_cuda_graphs(true);
  EXPECT_THAT(
      GpuSettingNotes(train, device),
      ElementsAre("train.tf32 has no effect without a GPU",
                  "train.memory_snapshot_at_oom has no effect without a GPU",
                  "train.cuda_graphs has no effect without a GPU"));
  device.gpu = true;
  EXPECT_THAT(GpuSettingNotes(train, device), IsEmpty());
}

}  // namespace
}  // namespace capstan
