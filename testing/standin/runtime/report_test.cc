// SPDX-License-Identifier: Apache-2.0
//
// Steps, ranges, and what is counted and traced of them.
#include <gtest/gtest.h>

#include <string>

#include "testing/standin/device.h"
#include "testing/standin/runtime/nvtx_abi.h"
#include "testing/standin/runtime/standin_testing.h"

extern "C" int InitializeInjectionNvtx2(
    capstan::standin::NvtxGetTable get_table);

namespace capstan::standin {
namespace {

// What a program with NVTX calls, as the tool has set it.
NvtxFunction push_function = nullptr;
NvtxFunction pop_function = nullptr;

void Push(const std::string& name) {
  reinterpret_cast<int (*)(const char*)>(push_function)(name.c_str());
}

void Pop() { reinterpret_cast<int (*)()>(pop_function)(); }

// As NVTX does when it is first used in a process.
void LoadTool() {
  const auto get_table = [](uint32_t) -> const void* {
    static const NvtxCallbacks callbacks = {
        sizeof(NvtxCallbacks),
        [](int module, NvtxTable* table, unsigned* size) {
          static NvtxFunction* functions[16] = {};
          functions[kNvtxRangePushA] = &push_function;
          functions[kNvtxRangePop] = &pop_function;
          *table = functions;
          *size = 16;
          return module == kNvtxCore ? 1 : 0;
        }};
    return &callbacks;
  };
  CAPSTAN_CHECK(InitializeInjectionNvtx2(get_table) == 1);
}

void TwoSteps() {
  LoadTool();
  float* const a = DeviceFloats(1024);
  const cudaStream_t stream = NewStream();
  CAPSTAN_CHECK_CUDA(cudaMemsetAsync(a, 0, 4096, stream));
  for (int step = 1; step <= 2; ++step) {
    Push("step " + std::to_string(step));
    Push("forward");
    Add("aten::add", a, a, 1024, 1, stream);
    Pop();
    if (step == 2) {
      void* more = nullptr;
      CAPSTAN_CHECK_CUDA(cudaMalloc(&more, 8192));
      CAPSTAN_CHECK_CUDA(cudaFree(more));
      CAPSTAN_CHECK(Value(a, stream) == 2);
    }
    Pop();
  }
}

TEST(ReportTest, CountsEachStep) {
  const Outcome outcome = RunOnStandin("", TwoSteps);
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(
      outcome.Count("{\"step\": 1, \"works\": 1, \"launches\": 1, "
                    "\"waits\": 0, \"polls\": 0, \"mallocs\": 0, \"frees\": 0, "
                    "\"flops\": 1024, \"bytes\": 8192, "
                    "\"bytes_sent\": 0, \"peak_bytes\": 4096"),
      1)
      << outcome.report;
  // The free and the copy have waited.
  EXPECT_EQ(outcome.Count(
                "{\"step\": 2, \"works\": 2, \"launches\": 1, "
                "\"waits\": 2, \"polls\": 0, \"mallocs\": 1, \"frees\": 1, "),
            1)
      << outcome.report;
  EXPECT_EQ(outcome.Count("\"peak_bytes\": 12288"), 1) << outcome.report;
  EXPECT_EQ(outcome.Count("{\"wait\": \"free\", \"step\": 2"), 1);
}

TEST(ReportTest, TellsWhatIsQueuedBehindAPoll) {
  const Outcome outcome = RunOnStandin("order=late,idle_ms=60000", [] {
    LoadTool();
    float* const a = DeviceFloats(1024);
    const cudaStream_t stream = NewStream();
    const cudaEvent_t event = NewEvent();
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, stream));
    // No step's.
    CAPSTAN_CHECK_ERROR(cudaEventQuery(event), cudaErrorNotReady);
    Push("step 1");
    CAPSTAN_CHECK_CUDA(cudaEventRecord(event, stream));
    for (int i = 0; i < 3; ++i) {
      Add("add", a, a, 1024, 1, stream);
      // Not in a loop.
      CAPSTAN_CHECK_ERROR(cudaEventQuery(event), cudaErrorNotReady);
    }
    for (int i = 0; i < 9; ++i) {
      CAPSTAN_CHECK_ERROR(cudaEventQuery(event), cudaErrorNotReady);
    }
    CAPSTAN_CHECK_CUDA(cudaStreamSynchronize(stream));
    CAPSTAN_CHECK_CUDA(cudaEventQuery(event));
    Pop();
  });
  EXPECT_EQ(outcome.status, 0) << outcome.output;
  EXPECT_EQ(outcome.Count("{\"poll\": \"event\", \"step\": 1, \"behind\": 3, "),
            1)
      << outcome.report;
  EXPECT_EQ(outcome.Count("\"poll\""), 1) << outcome.report;
  EXPECT_EQ(outcome.Count("\"polls\": 2, "), 1) << outcome.report;
}

TEST(ReportTest, TracesTheHostsCallsInTheirOrder) {
  const Outcome outcome = RunOnStandin("order=late", TwoSteps);
  const char* const lines[] = {
      "{\"malloc\": 4096}",
      "{\"copy\": \"set\", \"bytes\": 4096, \"stream\": 1",
      "{\"step_begin\": 1}",
      "{\"work\": \"aten::add\", \"stream\": 1, \"step\": 1, \"range\": "
      "\"forward\", \"flops\": 1024, \"unit\": \"vector\", \"read\": 4096, "
      "\"written\": 4096, \"launches\": 1, \"sent\": 0, \"ranks\": 0}",
      "{\"step_end\": 1}",
      "{\"step_begin\": 2}",
      "{\"malloc\": 8192}",
      "{\"host_wait\": \"free\"}",
      "{\"free\": 8192}",
      "{\"copy\": \"d2h\", \"bytes\": 4, \"stream\": 1",
      "{\"host_wait\": \"pageable_copy\", \"stream\": 1}",
      "{\"step_end\": 2}",
  };
  size_t at = 0;
  for (const char* line : lines) {
    const size_t found = outcome.trace.find(line, at);
    EXPECT_NE(found, std::string::npos) << line << "\n" << outcome.trace;
    if (found != std::string::npos) at = found;
  }
}

}  // namespace
}  // namespace capstan::standin
