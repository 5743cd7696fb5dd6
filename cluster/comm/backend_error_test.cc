// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/backend_error.h"

#include <gtest/gtest.h>

namespace capstan {
namespace {

TEST(BackendMessageTest, GloosHasNoSourceAndNoAdvice) {
  EXPECT_EQ(BackendMessage("[/gloo/transport/tcp/pair.cc:534] Connection "
                           "closed by peer [10.0.0.2]:4711. This is typically "
                           "caused by a crash."),
            "Connection closed by peer [10.0.0.2]:4711");
}

TEST(BackendMessageTest, NcclsOwnTextIsKept) {
  EXPECT_EQ(
      BackendMessage(
          "NCCL communicator was aborted on rank 1. Original reason for "
          "failure was: NCCL error: remote process exited or there was a "
          "network error, NCCL version 2.28.9\n"
          "ncclRemoteError: A call failed possibly due to a network error or "
          "a remote process exiting prematurely.\n"
          "Last error:\n"
          "socketProgress: Connection closed by remote peer b<4711>\n"
          "Exception raised from checkForNCCLErrorsInternal"),
      "NCCL communicator was aborted on rank 1. Original reason for failure "
      "was: NCCL error: remote process exited or there was a network error, "
      "NCCL version 2.28.9: socketProgress: Connection closed by remote peer "
      "b<4711>");
}

TEST(BackendMessageTest, NcclMayHaveSaidNothing) {
  EXPECT_EQ(BackendMessage("NCCL error: internal error, NCCL version 2.28.9\n"
                           "ncclInternalError: Internal check failed.\n"
                           "Last error:\n"),
            "NCCL error: internal error, NCCL version 2.28.9");
}

TEST(BackendMessageTest, TimeoutsAndMemoryAreRecognized) {
  EXPECT_TRUE(IsTimeout("Watchdog caught collective operation timeout: .."));
  EXPECT_FALSE(IsTimeout("Connection closed by peer"));
  EXPECT_TRUE(
      IsOutOfMemory("unhandled cuda error\nLast error:\nCuda failure "
                    "2 'out of memory'"));
}

}  // namespace
}  // namespace capstan
