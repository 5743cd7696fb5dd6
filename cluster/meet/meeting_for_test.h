// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEET_MEETING_FOR_TEST_H_
#define CAPSTAN_CLUSTER_MEET_MEETING_FOR_TEST_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/free_port_for_test.h"
#include "cluster/launch/network.h"
#include "cluster/launch/rank_info.h"
#include "cluster/meet/protocol.h"
#include "cluster/meet/rendezvous.h"

// Ranks that are threads, and strangers.
namespace capstan {

constexpr char kTestToken[] = "the run's own token";
constexpr char kTestKey[] = "test-run";

inline Deadline In(std::chrono::milliseconds time) {
  return MeetingClock::now() + time;
}

// Long enough on a busy machine.
inline Deadline Soon() { return In(std::chrono::seconds(30)); }

// An empty folder of this test's own.
inline std::string TestFolder() {
  const auto* test = testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder =
      absl::StrCat(testing::TempDir(), "/", test->test_suite_name(), ".",
                   test->name(), ".", getpid());
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

inline SocketAddress Loopback(int port = 0) {
  return *SocketAddress::Parse("127.0.0.1", port);
}

// A rank of one host, which meets at a port.
inline RankInfo TestRank(int rank, int world_size, int port) {
  RankInfo info;
  info.rank = rank;
  info.world_size = world_size;
  info.local_rank = rank;
  info.local_world_size = world_size;
  info.master_port = port;
  info.run_key = kTestKey;
  info.token = kTestToken;
  return info;
}

// A rank of one host that isn't told where rank 0 is.
inline RankInfo TestRankByFile(int rank, int world_size,
                               const std::string& folder) {
  RankInfo info = TestRank(rank, world_size, 0);
  info.master_addr.clear();
  info.meeting_folder = folder;
  info.token.clear();
  return info;
}

using MeetingResults = std::vector<absl::StatusOr<Meeting>>;

inline MeetingResults MeetInThreads(
    const std::vector<RankInfo>& ranks,
    std::chrono::milliseconds timeout = std::chrono::seconds(60)) {
  MeetingResults results(ranks.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < ranks.size(); ++i) {
    threads.emplace_back([&, i] { results[i] = Meet(ranks[i], timeout); });
  }
  for (std::thread& thread : threads) thread.join();
  return results;
}

inline void ExpectAllMet(const MeetingResults& results) {
  for (const auto& result : results)
    EXPECT_TRUE(result.ok()) << result.status();
}

inline std::string MessageOf(const absl::Status& status) {
  return std::string(status.message());
}

// A connection on which a test says what it likes.
class RawPeer {
 public:
  explicit RawPeer(SocketFd fd) : fd_(std::move(fd)) {}
  static RawPeer At(const SocketAddress& address) {
    absl::StatusOr<SocketFd> fd = ConnectTo(address, Soon());
    EXPECT_TRUE(fd.ok()) << fd.status();
    return RawPeer(fd.ok() ? *std::move(fd) : SocketFd());
  }

  void Say(const std::string& bytes) {
    // The other end may have closed already.
    SendAll(fd_.get(), bytes, Soon()).IgnoreError();
  }

  // The next payload; "" if the connection is closed first.
  std::string Hear() {
    while (true) {
      absl::StatusOr<absl::optional<std::string>> payload = input_.Next();
      if (!payload.ok()) return "";
      if (payload->has_value()) return **payload;
      if (!ReceiveSome(fd_.get(), Soon(), input_.bytes()).ok()) return "";
    }
  }

  // Whether the other end closes the connection before `deadline`.
  bool IsClosedBy(Deadline deadline) {
    std::string rest;
    while (true) {
      const absl::Status status = ReceiveSome(fd_.get(), deadline, &rest);
      if (!status.ok()) return absl::IsUnavailable(status);
    }
  }

  // Joins as a rank; what comes back is what was heard then.
  std::string JoinAs(Hello hello, const std::string& token = kTestToken) {
    hello.nonce = RandomBytes(kNonceBytes);
    const std::string frame = Encode(hello);
    Say(frame);
    const absl::StatusOr<Challenge> challenge = ParseChallenge(Hear());
    EXPECT_TRUE(challenge.ok()) << challenge.status();
    if (!challenge.ok()) return "";
    Say(Encode(
        Proof{ProofOf(Prover::kRank, token, PayloadOf(frame), challenge->nonce),
              60000}));
    return Hear();
  }

  void Close() { fd_.Close(); }

 private:
  SocketFd fd_;
  FrameBuffer input_{kMaxPayload};
};

inline Hello TestHello(int rank, int world_size) {
  Hello hello;
  hello.rank = rank;
  hello.world_size = world_size;
  hello.pid = 4000 + rank;

  hello.host = absl::StrCat("host", rank);
  hello.run_key = kTestKey;
  return hello;
}

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEET_MEETING_FOR_TEST_H_
