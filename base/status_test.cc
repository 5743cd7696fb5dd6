// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>
#include <string>

namespace capstan {
namespace {

// What becomes of an exception.
template <typename Exception>
absl::Status Caught(const Exception& exception) {
  try {
    throw exception;
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

absl::Status CaughtError(const std::string& message) {
  try {
    C10_THROW_ERROR(Error, message);
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

// As LibTorch 2.11.0 words them.
TEST(CurrentExceptionTest, AGpusMemoryByWhomeverItWasAskedFor) {
  for (const char* text : {
           "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'",
           "CUDA driver error: out of memory",
           "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
           "`cublasCreate(handle)`",
           "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
           "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
           "NCCL error in: NCCLUtils.cpp:77, unhandled cuda error (run with "
           "NCCL_DEBUG=INFO for details), NCCL version 2.28.9\n"
           "ncclUnhandledCudaError: Call to CUDA function failed.\n"
           "Last error:\nCuda failure 2 'out of memory'",
       }) {
    const absl::Status status = CaughtError(text);
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_EQ(std::string(status.message()).find('\n'), std::string::npos);
    EXPECT_TRUE(absl::IsResourceExhausted(Caught(std::runtime_error(text))))
        << text;
  }
}

TEST(CurrentExceptionTest, OthersAreNot) {
  for (const char* text :
       {"CUDA error: an illegal memory access was encountered",
        "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling "
        "`cublasGemmEx`",
        "shape '[2]' is invalid for input of size 3"}) {
    EXPECT_TRUE(absl::IsInternal(CaughtError(text))) << text;
    EXPECT_TRUE(absl::IsInternal(Caught(std::runtime_error(text)))) << text;
  }
  // A peer's is that peer's to tell.
  EXPECT_TRUE(absl::IsUnavailable(
      Caught(CommunicationError("CUDA error: out of memory"))));
  EXPECT_TRUE(absl::IsResourceExhausted(Caught(std::bad_alloc())));
}

}  // namespace
}  // namespace capstan
