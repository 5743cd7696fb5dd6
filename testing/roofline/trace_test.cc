// SPDX-License-Identifier: Apache-2.0
#include "testing/roofline/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace capstan {
namespace {

using ::testing::HasSubstr;

TEST(Trace, IsCutIntoSteps) {
  std::istringstream in(
      "{\"malloc\": 1000}\n"
      "{\"work\": \"before\", \"stream\": 0, \"step\": 0}\n"
      "{\"step_begin\": 1}\n"
      "{\"malloc\": 500}\n"
      "{\"free\": 500}\n"
      "{\"work\": \"aten::mm\", \"stream\": 7, \"step\": 1, \"range\": "
      "\"forward\", \"flops\": 2e9, \"unit\": \"half\", \"read\": 10, "
      "\"written\": 20, \"launches\": 1, \"sent\": 0, \"ranks\": 0, "
      "\"products\": 1, \"m\": 4, \"n\": 5, \"k\": 6}\n"
      "{\"record\": 3, \"stream\": 7}\n"
      "{\"wait_event\": 3, \"stream\": 8}\n"
      "{\"copy\": \"h2d\", \"bytes\": 64, \"stream\": 7}\n"
      "{\"host_wait\": \"cudaEventSynchronize\", \"event\": 3}\n"
      "{\"something\": \"of a later format\"}\n"
      "{\"work\": \"nccl::all_reduce\", \"stream\": 8, \"range\": "
      "\"stride 8\", \"sent\": 100, \"ranks\": 4}\n"
      "{\"step_end\": 1}\n"
      "{\"step_begin\": 2}\n"
      "{\"step_end\": 2}\n"
      "{\"step_begin\": 3}\n"
      "{\"work\": \"cut o");
  const auto steps = ReadTrace(in);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 2);
  const TracedStep& step = (*steps)[0];
  EXPECT_EQ(step.step, 1);
  EXPECT_EQ(step.peak_bytes, 1500);
  EXPECT_EQ((*steps)[1].peak_bytes, 1000);
  ASSERT_EQ(step.entries.size(), 8);
  const TraceEntry& mm = step.entries[2];
  EXPECT_EQ(mm.kind, TraceKind::kWork);
  EXPECT_EQ(mm.name, "aten::mm");
  EXPECT_EQ(mm.range, "forward");
  EXPECT_EQ(mm.unit, TraceUnit::kHalf);
  EXPECT_EQ(mm.flops, 2e9);
  EXPECT_EQ(mm.read + mm.written, 30);
  EXPECT_EQ(mm.stream, 7);
  EXPECT_EQ(mm.product.products, 1);
  EXPECT_EQ(mm.product.m, 4);
  EXPECT_EQ(mm.product.n, 5);
  EXPECT_EQ(mm.product.k, 6);
  EXPECT_EQ(mm.stride, 1);
  EXPECT_EQ(step.entries[4].kind, TraceKind::kWaitEvent);
  EXPECT_EQ(step.entries[4].event, 3);
  EXPECT_EQ(step.entries[5].bytes, 64);
  EXPECT_EQ(step.entries[6].kind, TraceKind::kHostWait);
  EXPECT_EQ(step.entries[6].event, 3);
  EXPECT_EQ(step.entries[7].ranks, 4);
  EXPECT_EQ(step.entries[7].stride, 8);
}

TEST(Trace, ThatIsBrokenInTheMidstIsAnError) {
  std::istringstream in("{\"step_begin\": 1}\n{\"wo\n{\"step_end\": 1}\n");
  const auto steps = ReadTrace(in);
  EXPECT_THAT(std::string(steps.status().message()), HasSubstr("line 2"));
}

}  // namespace
}  // namespace capstan
