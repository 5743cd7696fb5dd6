// SPDX-License-Identifier: Apache-2.0
//
// Runs a piece of a test in a process of its own, on stand-in devices of its
// own.
#ifndef CAPSTAN_TESTING_STANDIN_RUNTIME_STANDIN_TESTING_H_
#define CAPSTAN_TESTING_STANDIN_RUNTIME_STANDIN_TESTING_H_

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace capstan::standin {

struct Outcome {
  // The process's exit status; -N if signal N ended it.
  int status = 0;
  std::string report;  // all lines
  std::string trace;
  std::string output;  // standard output and standard error

  // Lines of the report with this text.
  int Count(const std::string& text) const;
  // Kinds of findings, in their order, separated by spaces.
  std::string Findings() const;
};

// Forks. The parent must not use CUDA. In the child CAPSTAN_STANDIN is
// `settings`, and a report and a trace are written.
Outcome RunOnStandin(const std::string& settings,
                     const std::function<void()>& body);

// Ends the process with status 1 unless it holds.
void Check(bool holds, const char* what, const char* file, int line);
#define CAPSTAN_CHECK(condition) \
  ::capstan::standin::Check((condition), #condition, __FILE__, __LINE__)
// A CUDA call that must return `error`.
#define CAPSTAN_CHECK_ERROR(call, error)                                 \
  ::capstan::standin::Check((call) == (error), #call " returns " #error, \
                            __FILE__, __LINE__)
#define CAPSTAN_CHECK_CUDA(call) CAPSTAN_CHECK_ERROR(call, cudaSuccess)

// "late", "eager", "random:1", "random:2": what each test of order goes
// through.
const std::vector<std::string>& Orders();

// Memory of the device with n floats.
float* DeviceFloats(int64_t n);
// Pinned memory with n floats.
float* PinnedFloats(int64_t n);
// A stream that isn't ordered with the legacy one.
cudaStream_t NewStream();
cudaEvent_t NewEvent();

// Appends: to[i] = from[i] + more for i < n, as a kernel named `name`. Both on
// the device, or pinned.
void Add(const char* name, float* to, const float* from, int64_t n, float more,
         cudaStream_t stream);

// p[0] of the device's memory, by a copy that waits for the stream.
float Value(const float* p, cudaStream_t stream);

// In each order of works.
class InAllOrders : public ::testing::TestWithParam<std::string> {
 protected:
  // Runs the body, which must end well and without findings.
  Outcome RunWell(const std::function<void()>& body) {
    Outcome outcome = RunOnStandin(GetParam() + ",memory=64M", body);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    EXPECT_EQ(outcome.Findings(), "") << outcome.report;
    return outcome;
  }
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_RUNTIME_STANDIN_TESTING_H_
