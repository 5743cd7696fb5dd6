// SPDX-License-Identifier: Apache-2.0
//
// The stand-in NCCL between processes, on the stand-in runtime.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

namespace fs = std::filesystem;

// Ends a child, whose standard error says why.
#define REQUIRE(condition)                                            \
  do {                                                                \
    if (!(condition)) {                                               \
      fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                       \
    }                                                                 \
  } while (false)

// A rank's communicator, stream and memory.
class Rank {
 public:
  Rank(int rank, int size, const ncclUniqueId& id) : rank_(rank), size_(size) {
    REQUIRE(ncclCommInitRank(&comm, size, id, rank) == ncclSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ==
            cudaSuccess);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  template <typename T>
  T* ToDevice(const std::vector<T>& values) const {
    void* p = nullptr;
    REQUIRE(cudaMalloc(&p, values.size() * sizeof(T)) == cudaSuccess);
    REQUIRE(cudaMemcpy(p, values.data(), values.size() * sizeof(T),
                       cudaMemcpyHostToDevice) == cudaSuccess);
    return static_cast<T*>(p);
  }
  template <typename T>
  std::vector<T> ToHost(const T* p, int64_t count) const {
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    std::vector<T> values(count);
    REQUIRE(cudaMemcpy(values.data(), p, count * sizeof(T),
                       cudaMemcpyDeviceToHost) == cudaSuccess);
    return values;
  }
  // Whether the stream is idle before so many seconds are over.
  bool Idle(double seconds) const {
    const auto end = std::chrono::steady_clock::now() +
                     std::chrono::duration<double>(seconds);
    while (std::chrono::steady_clock::now() < end) {
      if (cudaStreamQuery(stream) == cudaSuccess) return true;
      // sleeps: polls
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    return false;
  }
  // Waits for the communicator to have failed.
  ncclResult_t Error() const {
    ncclResult_t error = ncclSuccess;
    for (int i = 0; i < 1200 && error == ncclSuccess; ++i) {
      cudaStreamQuery(stream);
      // sleeps: polls
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      REQUIRE(ncclCommGetAsyncError(comm, &error) == ncclSuccess);
    }
    return error;
  }

  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;

 private:
  const int rank_;
  const int size_;
};

std::string TempFolder() {
  std::string folder = testing::TempDir() + "/standin_nccl_XXXXXX";
  return mkdtemp(folder.data());
}

// Runs `rank` in processes of their own, each with the settings added to
// CAPSTAN_STANDIN; expects that they succeed. Returns the reports' lines that
// name findings.
std::string RunRanks(int size, const std::string& settings,
                     const std::function<void(Rank&)>& rank) {
  const std::string report = TempFolder();
  ncclUniqueId id;
  EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const pid_t child = fork();
    if (child == 0) {
      alarm(60);
      const std::string all =
          "gpus=1,report=" + report + (settings.empty() ? "" : "," + settings);
      setenv("CAPSTAN_STANDIN", all.c_str(), 1);
      Rank self(r, size, id);
      rank(self);
      // As a process that ends: the report is written.
      exit(0);
    }
    children.push_back(child);
  }
  for (int r = 0; r < size; ++r) {
    int status = 0;
    waitpid(children[r], &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
        << "rank " << r << " of " << size << ": " << status;
  }
  EXPECT_FALSE(fs::exists(std::string("/dev/shm/") + id.internal));
  std::string findings;
  for (const auto& entry : fs::directory_iterator(report)) {
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      if (line.find("\"finding\"") != std::string::npos)
        findings += line + "\n";
    }
  }
  fs::remove_all(report);
  return findings;
}

// Values that no rank and no place share.
template <typename T>
std::vector<T> Values(int rank, int64_t count) {
  std::vector<T> values(count);
  for (int64_t i = 0; i < count; ++i) {
    values[i] = static_cast<T>(rank * 7 + i % 11 + 1);
  }
  return values;
}

template <typename T>
void CheckReductions(Rank& self, ncclDataType_t type, int64_t count) {
  const int n = self.size();
  std::vector<std::vector<T>> all;
  for (int r = 0; r < n; ++r) all.push_back(Values<T>(r, count * n));
  T* const in = self.ToDevice(all[self.rank()]);
  T* const out = self.ToDevice(std::vector<T>(count * n));
  const auto expect = [&](ncclRedOp_t op, int64_t i) {
    T value = all[0][i];
    for (int r = 1; r < n; ++r) {
      const T next = all[r][i];
      if (op == ncclProd)
        value = static_cast<T>(value * next);
      else if (op == ncclMax)
        value = std::max(value, next);
      else if (op == ncclMin)
        value = std::min(value, next);
      else
        value = static_cast<T>(value + next);
    }
    return op == ncclAvg ? static_cast<T>(value / static_cast<T>(n)) : value;
  };
  for (ncclRedOp_t op : {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg}) {
    REQUIRE(ncclAllReduce(in, out, count, type, op, self.comm, self.stream) ==
            ncclSuccess);
    const std::vector<T> got = self.ToHost(out, count);
    for (int64_t i = 0; i < count; ++i) REQUIRE(got[i] == expect(op, i));
  }
  REQUIRE(ncclReduceScatter(in, out, count, type, ncclSum, self.comm,
                            self.stream) == ncclSuccess);
  const std::vector<T> slice = self.ToHost(out, count);
  for (int64_t i = 0; i < count; ++i) {
    REQUIRE(slice[i] == expect(ncclSum, self.rank() * count + i));
  }
  const int root = n - 1;
  const std::vector<T> zeros(count);
  T* const reduced = self.ToDevice(zeros);
  REQUIRE(ncclReduce(in, reduced, count, type, ncclSum, root, self.comm,
                     self.stream) == ncclSuccess);
  const std::vector<T> got = self.ToHost(reduced, count);
  for (int64_t i = 0; i < count; ++i) {
    REQUIRE(got[i] == (self.rank() == root ? expect(ncclSum, i) : T{0}));
  }
  for (void* p : {in, out, reduced}) REQUIRE(cudaFree(p) == cudaSuccess);
}

void CheckMoves(Rank& self, int64_t count) {
  const int n = self.size();
  const std::vector<int> mine = Values<int>(self.rank(), count * n);
  int* const in = self.ToDevice(mine);
  int* const out = self.ToDevice(std::vector<int>(count * n));
  REQUIRE(ncclAllGather(in, out, count, ncclInt, self.comm, self.stream) ==
          ncclSuccess);
  std::vector<int> got = self.ToHost(out, count * n);
  for (int r = 0; r < n; ++r) {
    const std::vector<int> theirs = Values<int>(r, count);
    REQUIRE(std::memcmp(&got[r * count], theirs.data(), count * 4) == 0);
  }
  REQUIRE(ncclAlltoAll(in, out, count, ncclInt, self.comm, self.stream) ==
          ncclSuccess);
  got = self.ToHost(out, count * n);
  for (int r = 0; r < n; ++r) {
    const std::vector<int> theirs = Values<int>(r, count * n);
    REQUIRE(std::memcmp(&got[r * count], &theirs[self.rank() * count],
                        count * 4) == 0);
  }
  REQUIRE(ncclBroadcast(in, out, count, ncclInt, n - 1, self.comm,
                        self.stream) == ncclSuccess);
  got = self.ToHost(out, count);
  REQUIRE(got == Values<int>(n - 1, count));
  // Around the ring, both ways at once.
  const int next = (self.rank() + 1) % n, last = (self.rank() + n - 1) % n;
  REQUIRE(ncclGroupStart() == ncclSuccess);
  REQUIRE(ncclSend(in, count, ncclInt, next, self.comm, self.stream) ==
          ncclSuccess);
  REQUIRE(ncclSend(in, count, ncclInt, last, self.comm, self.stream) ==
          ncclSuccess);
  REQUIRE(ncclRecv(out, count, ncclInt, last, self.comm, self.stream) ==
          ncclSuccess);
  REQUIRE(ncclRecv(out + count, count, ncclInt, next, self.comm, self.stream) ==
          ncclSuccess);
  REQUIRE(ncclGroupEnd() == ncclSuccess);
  got = self.ToHost(out, 2 * count);
  const std::vector<int> before = Values<int>(last, count);
  const std::vector<int> after = Values<int>(next, count);
  REQUIRE(std::memcmp(got.data(), before.data(), count * 4) == 0);
  REQUIRE(std::memcmp(&got[count], after.data(), count * 4) == 0);
  for (void* p : {in, out}) REQUIRE(cudaFree(p) == cudaSuccess);
}

void CheckAll(Rank& self) {
  CheckReductions<float>(self, ncclFloat32, 17);
  CheckReductions<double>(self, ncclFloat64, 5);
  CheckReductions<int64_t>(self, ncclInt64, 3);
  CheckReductions<uint8_t>(self, ncclUint8, 9);
  // More than a round.
  CheckReductions<float>(self, ncclFloat32, 700'001);
  CheckMoves(self, 13);
  CheckMoves(self, 300'007);
}

TEST(StandinNccl, TwoRanks) { EXPECT_EQ(RunRanks(2, "", CheckAll), ""); }

TEST(StandinNccl, FourRanksInAnyOrder) {
  EXPECT_EQ(RunRanks(4, "order=random:3", CheckAll), "");
}

// 16-bit floats are summed in float32 and rounded once, to nearest even.
TEST(StandinNccl, RoundsHalvesOnce) {
  const auto rank = [](Rank& self) {
    // bfloat16: 256, 1, 1: one by one each sum would be rounded back to 256.
    const uint16_t bfloats[] = {0x4380, 0x3F80, 0x3F80};
    // float16: 2048, 1, 1.
    const uint16_t halves[] = {0x6800, 0x3C00, 0x3C00};
    uint16_t* const p =
        self.ToDevice<uint16_t>({bfloats[self.rank()], halves[self.rank()]});
    REQUIRE(ncclAllReduce(p, p, 1, ncclBfloat16, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    REQUIRE(ncclAllReduce(p + 1, p + 1, 1, ncclHalf, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    const std::vector<uint16_t> sums = self.ToHost(p, 2);
    REQUIRE(sums[0] == 0x4381);  // 258
    REQUIRE(sums[1] == 0x6801);  // 2050
    // Each halved before the sum: 1024, 0.5, 0.5 = 1025 -> 1024 + 1.
    const uint16_t half = 0x3800;
    ncclRedOp_t op;
    REQUIRE(ncclRedOpCreatePreMulSum(&op, const_cast<uint16_t*>(&half),
                                     ncclHalf, ncclScalarHostImmediate,
                                     self.comm) == ncclSuccess);
    uint16_t* const q = self.ToDevice<uint16_t>({halves[self.rank()]});
    REQUIRE(ncclAllReduce(q, q, 1, ncclHalf, op, self.comm, self.stream) ==
            ncclSuccess);
    REQUIRE(self.ToHost(q, 1)[0] == 0x6401);
  };
  EXPECT_EQ(RunRanks(3, "", rank), "");
}

TEST(StandinNccl, Splits) {
  const auto rank = [](Rank& self) {
    // Even and odd ranks, in reverse; rank 3 stays out.
    const int color = self.rank() == 3 ? NCCL_SPLIT_NOCOLOR : self.rank() % 2;
    ncclComm_t part = nullptr;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    const ncclResult_t result =
        ncclCommSplit(self.comm, color, -self.rank(), &part, &config);
    REQUIRE(result == ncclSuccess || result == ncclInProgress);
    REQUIRE((part == nullptr) == (self.rank() == 3));
    if (part == nullptr) return;
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      REQUIRE(ncclCommGetAsyncError(part, &state) == ncclSuccess);
    }
    REQUIRE(state == ncclSuccess);
    int size = 0, place = 0;
    REQUIRE(ncclCommCount(part, &size) == ncclSuccess);
    REQUIRE(ncclCommUserRank(part, &place) == ncclSuccess);
    REQUIRE(size == (color == 0 ? 2 : 1));
    REQUIRE(place == (self.rank() == 0 ? 1 : 0));
    int* const p = self.ToDevice<int>({1 << self.rank()});
    REQUIRE(ncclAllReduce(p, p, 1, ncclInt, ncclSum, part, self.stream) ==
            ncclSuccess);
    REQUIRE(self.ToHost(p, 1)[0] == (color == 0 ? 5 : 2));
    REQUIRE(ncclCommDestroy(part) == ncclSuccess);
  };
  EXPECT_EQ(RunRanks(4, "", rank), "");
}

// A collective that waits for its peers holds up no other stream.
TEST(StandinNccl, OtherStreamsGoOn) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    int* const other = self.ToDevice<int>({0});
    if (self.rank() == 0) {
      REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                            self.stream) == ncclSuccess);
    }
    // Rank 1 joins the all-reduce only after a message that rank 0 sends on
    // another communicator and stream, later.
    ncclComm_t second = nullptr;
    REQUIRE(ncclCommSplit(self.comm, 0, 0, &second, nullptr) == ncclSuccess);
    cudaStream_t stream;
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) ==
            cudaSuccess);
    if (self.rank() == 0) {
      REQUIRE(ncclSend(other, 1, ncclInt, 1, second, stream) == ncclSuccess);
    } else {
      REQUIRE(ncclRecv(other, 1, ncclInt, 0, second, stream) == ncclSuccess);
    }
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    if (self.rank() == 1) {
      REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                            self.stream) == ncclSuccess);
    }
    REQUIRE(self.ToHost(p, 1)[0] == 2.0f);
  };
  EXPECT_EQ(RunRanks(2, "", rank), "");
}

// Planted: rank 1 leaves out the second of three collectives.
TEST(StandinNccl, NamesACollectiveThatOneRankSkips) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice(std::vector<float>(64, 1.0f));
    REQUIRE(ncclAllReduce(p, p, 17, ncclFloat, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    if (self.rank() == 0) {
      REQUIRE(ncclAllGather(p, p, 32, ncclFloat, self.comm, self.stream) ==
              ncclSuccess);
    }
    REQUIRE(ncclReduceScatter(p, p, 8, ncclFloat, ncclSum, self.comm,
                              self.stream) == ncclSuccess);
    REQUIRE(!self.Idle(1.0));
    REQUIRE(ncclCommAbort(self.comm) == ncclSuccess);
    REQUIRE(self.Idle(20.0));
  };
  const std::string findings = RunRanks(2, "", rank);
  EXPECT_NE(findings.find("mismatch"), std::string::npos) << findings;
  EXPECT_NE(findings.find("call 2: rank 0 does nccl::all_gather of 32 float32, "
                          "rank 1 nccl::reduce_scatter of 8 float32 (sum)"),
            std::string::npos)
      << findings;
}

// Planted: the last is left out, so that nothing else is in its place.
TEST(StandinNccl, NamesACollectiveThatARankLeavesBefore) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    if (self.rank() == 1) {
      REQUIRE(ncclCommDestroy(self.comm) == ncclSuccess);
      std::this_thread::sleep_for(std::chrono::seconds(2));
      return;
    }
    REQUIRE(ncclBroadcast(p, p, 1, ncclFloat, 0, self.comm, self.stream) ==
            ncclSuccess);
    REQUIRE(!self.Idle(1.0));
    REQUIRE(ncclCommAbort(self.comm) == ncclSuccess);
    REQUIRE(self.Idle(20.0));
  };
  const std::string findings = RunRanks(2, "", rank);
  EXPECT_NE(findings.find("waits in nccl::broadcast of 1 float32, root 0 (its "
                          "call 1) for rank 1, which has left"),
            std::string::npos)
      << findings;
}

// Planted: a rank that comes never.
TEST(StandinNccl, NamesWhomACollectiveWaitsFor) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    if (self.rank() == 0) {
      REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclMax, self.comm,
                            self.stream) == ncclSuccess);
      REQUIRE(!self.Idle(2.0));
      REQUIRE(ncclCommAbort(self.comm) == ncclSuccess);
      REQUIRE(self.Idle(20.0));
    } else {
      std::this_thread::sleep_for(std::chrono::seconds(3));
    }
  };
  const std::string findings = RunRanks(2, "hang=1", rank);
  EXPECT_NE(findings.find("rank 0 of 2 waits in nccl::all_reduce of 1 float32 "
                          "(maximum) (its call 1) for rank 1, whose host "
                          "hasn't issued it (0 calls begun)"),
            std::string::npos)
      << findings;
}

TEST(StandinNccl, FailsWhereAsked) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    for (int i = 0; i < 3; ++i) {
      REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                            self.stream) == ncclSuccess);
    }
    REQUIRE(self.Error() ==
            (self.rank() == 1 ? ncclSystemError : ncclRemoteError));
    REQUIRE(!self.Idle(0.2));
    REQUIRE(ncclCommAbort(self.comm) == ncclSuccess);
    REQUIRE(self.Idle(20.0));
    // Two were done.
    REQUIRE(self.ToHost(p, 1)[0] == 4.0f);
  };
  EXPECT_EQ(RunRanks(2, "fault=collective:3,fault_rank=1", rank), "");
}

TEST(StandinNccl, RefusesWhatNcclRefuses) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    REQUIRE(ncclBroadcast(p, p, 1, ncclFloat, 1, self.comm, self.stream) ==
            ncclInvalidArgument);
    REQUIRE(ncclAllReduce(p, p, 1, static_cast<ncclDataType_t>(77), ncclSum,
                          self.comm, self.stream) == ncclInvalidArgument);
    REQUIRE(ncclGroupEnd() == ncclInvalidUsage);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.minCTAs = 8;
    config.maxCTAs = 4;
    ncclUniqueId id;
    ncclComm_t other = nullptr;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclCommInitRankConfig(&other, 1, id, 0, &config) ==
            ncclInvalidArgument);
    float host = 1.0f;
    REQUIRE(ncclAllReduce(&host, p, 1, ncclFloat, ncclSum, self.comm,
                          self.stream) == ncclInvalidArgument);
  };
  const std::string findings = RunRanks(1, "", rank);
  EXPECT_NE(findings.find("nccl::all_reduce was given memory that no device "
                          "can reach"),
            std::string::npos)
      << findings;
}

TEST(StandinNccl, TellsThatThereIsNoMemory) {
  const auto rank = [](Rank& self) {
    setenv("NCCL_BUFFSIZE", "1073741824", 1);
    ncclUniqueId id;
    ncclComm_t other = nullptr;
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    REQUIRE(ncclCommInitRank(&other, 1, id, 0) == ncclUnhandledCudaError);
    REQUIRE(std::string(ncclGetLastError(nullptr)) ==
            "Cuda failure 2 'out of memory'");
    REQUIRE(cudaGetLastError() == cudaSuccess);
    // What there was goes on.
    float* const p = self.ToDevice<float>({3.0f});
    REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    REQUIRE(self.ToHost(p, 1)[0] == 3.0f);
  };
  EXPECT_EQ(RunRanks(1, "memory=1G", rank), "");
}

// A collective that a graph captures happens at each launch.
TEST(StandinNccl, IsCapturedByGraphs) {
  const auto rank = [](Rank& self) {
    float* const p = self.ToDevice<float>({1.0f});
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    REQUIRE(cudaStreamBeginCapture(
                self.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    REQUIRE(cudaStreamEndCapture(self.stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiateWithFlags(&exec, graph, 0) == cudaSuccess);
    for (int i = 0; i < 3; ++i) {
      REQUIRE(cudaGraphLaunch(exec, self.stream) == cudaSuccess);
    }
    REQUIRE(ncclAllReduce(p, p, 1, ncclFloat, ncclSum, self.comm,
                          self.stream) == ncclSuccess);
    REQUIRE(self.ToHost(p, 1)[0] == 16.0f);
  };
  EXPECT_EQ(RunRanks(2, "", rank), "");
}

}  // namespace
