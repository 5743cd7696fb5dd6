// SPDX-License-Identifier: Apache-2.0
//
// Who may join, and what becomes of everybody else.
#include "cluster/meet/server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/launch/network.h"
#include "cluster/meet/client.h"
#include "cluster/meet/meeting_for_test.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ServerTest : public testing::Test {
 protected:
  void Start(int world_size, milliseconds handshake_limit = seconds(30),
             const std::string& run_key = kTestKey,
             const std::string& token = kTestToken) {
    MeetingServerOptions options;
    options.world_size = world_size;
    options.run_key = run_key;
    options.token = token;
    options.host_address = "10.0.0.1";
    options.handshake_limit = handshake_limit;
    options.warn = [this](const std::string& line) {
      const std::lock_guard<std::mutex> lock(mutex_);
      lines_.push_back(line);
    };
    address_ = Loopback();
    absl::StatusOr<SocketFd> fd = ListenAt(&address_);
    ASSERT_TRUE(fd.ok()) << fd.status();
    std::vector<SocketFd> listening;
    listening.push_back(*std::move(fd));
    auto server =
        MeetingServer::Start(std::move(options), std::move(listening));
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  absl::StatusOr<std::unique_ptr<MeetingClient>> Join(
      const Hello& hello, const std::string& token = kTestToken,
      Deadline deadline = Soon()) {
    auto fd = ConnectTo(address_, Soon());
    if (!fd.ok()) return fd.status();
    return MeetingClient::Join(*std::move(fd), hello, token, Soon(), deadline);
  }
  std::unique_ptr<MeetingClient> MustJoin(const Hello& hello,
                                          Deadline deadline = Soon()) {
    auto client = Join(hello, kTestToken, deadline);
    EXPECT_TRUE(client.ok()) << client.status();
    return client.ok() ? *std::move(client) : nullptr;
  }

  // Once there are so many.
  std::vector<std::string> Lines(size_t count) {
    const Deadline deadline = Soon();
    while (MeetingClock::now() < deadline) {
      {
        const std::lock_guard<std::mutex> lock(mutex_);
        if (lines_.size() >= count) return lines_;
      }
      // sleeps: polls
      std::this_thread::sleep_for(milliseconds(5));
    }
    ADD_FAILURE() << "no " << count << " lines";
    return {};
  }

  SocketAddress address_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  // Ends first: its thread uses the others.
  std::unique_ptr<MeetingServer> server_;
};

TEST_F(ServerTest, AllHearThatAllHaveCome) {
  Start(3);
  const auto own = MustJoin(TestHello(0, 3));
  const auto second = MustJoin(TestHello(2, 3));
  const auto first = MustJoin(TestHello(1, 3));
  for (MeetingClient* client : {own.get(), first.get(), second.get()}) {
    const auto met = client->AwaitAll(Soon());
    ASSERT_TRUE(met.ok()) << met.status();
    EXPECT_EQ(met->host_address, "10.0.0.1");
  }
  EXPECT_EQ(first->own_end().host(), "127.0.0.1");
  EXPECT_THAT(Lines(0), IsEmpty());
  // Nobody listens any more.
  EXPECT_FALSE(ConnectTo(address_, Soon()).ok());
}

TEST_F(ServerTest, GarbageIsDroppedWithOneWarning) {
  Start(1);
  for (const std::string& text :
       {std::string("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        std::string("SSH-2.0-OpenSSH_9\r\n"), std::string(100000, '\xff'),
        std::string(100000, '\0'), std::string("\x05\0\0\0abcde", 9),
        EncodeBare(MessageKind::kBye), Encode(Met{"10.0.0.9"}),
        Encode(StoreRequest())}) {
    RawPeer stranger = RawPeer::At(address_);
    stranger.Say(text);
    EXPECT_TRUE(stranger.IsClosedBy(Soon())) << text.substr(0, 20);
  }
  EXPECT_THAT(Lines(1),
              ElementsAre(AllOf(HasSubstr("127.0.0.1:"),
                                HasSubstr("isn't a message of Capstan"))));
  const auto rank = MustJoin(TestHello(0, 1));
  EXPECT_TRUE(rank->AwaitAll(Soon()).ok());
}

// Also where they stop in the midst of something.
TEST_F(ServerTest, TheSilentAreDroppedWhenTheirTimeIsUp) {
  Start(1, milliseconds(1000));
  std::vector<RawPeer> strangers;
  Hello hello = TestHello(0, 1);
  hello.nonce = std::string(kNonceBytes, 'n');
  const std::string frame = Encode(hello);
  for (const std::string& text :
       {std::string(), frame.substr(0, 2), frame.substr(0, 20), frame}) {
    strangers.push_back(RawPeer::At(address_));
    strangers.back().Say(text);
  }
  for (RawPeer& stranger : strangers) EXPECT_TRUE(stranger.IsClosedBy(Soon()));
  EXPECT_THAT(
      Lines(1),
      ElementsAre(HasSubstr("connected to the meeting and didn't say")));
  const auto rank = MustJoin(TestHello(0, 1));
  EXPECT_TRUE(rank->AwaitAll(Soon()).ok());
}

// More than it keeps: the oldest have to go, long before their time is up.
TEST_F(ServerTest, AFloodDoesNotKeepARankOut) {
  Start(1, std::chrono::minutes(10));
  std::vector<RawPeer> strangers;
  for (int i = 0; i < 350; ++i) strangers.push_back(RawPeer::At(address_));
  EXPECT_TRUE(strangers[0].IsClosedBy(Soon()));
  const auto rank = MustJoin(TestHello(0, 1));
  EXPECT_TRUE(rank->AwaitAll(Soon()).ok());
}

TEST_F(ServerTest, AnotherRunsRankIsRefusedByName) {
  Start(1);
  Hello hello = TestHello(5, 8);
  hello.run_key = "slurm-8";
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = Join(hello).status();
    EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
    EXPECT_EQ(MessageOf(refused),
              "it belongs to run slurm-8, and this is the meeting of run "
              "test-run");
  }
  EXPECT_THAT(
      Lines(1),
      ElementsAre(AllOf(HasSubstr("refused rank 5 (host host5, process 4005)"),
                        HasSubstr("it belongs to run slurm-8"))));
  EXPECT_TRUE(MustJoin(TestHello(0, 1))->AwaitAll(Soon()).ok());
}

TEST_F(ServerTest, AnotherTokenIsNoticedByBothSides) {
  Start(1);
  const absl::Status refused = Join(TestHello(0, 1), "another").status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("doesn't have this run's token"));
  // Who doesn't mind rank 0's proof has to give one all the same.
  RawPeer stranger = RawPeer::At(address_);
  const auto refusal =
      ParseRefusal(stranger.JoinAs(TestHello(0, 1), "another"));
  ASSERT_TRUE(refusal.ok()) << refusal.status();
  EXPECT_EQ(refusal->reason, RefusalReason::kOtherToken);
  EXPECT_THAT(Lines(2),
              ElementsAre(HasSubstr("came to the meeting and left: it has "
                                    "another token than rank 0"),
                          HasSubstr("it doesn't have the token of run "
                                    "test-run")));
  EXPECT_TRUE(MustJoin(TestHello(0, 1))->AwaitAll(Soon()).ok());
}

// What went over the wire once is worth nothing later.
TEST_F(ServerTest, AProofCanNotBeReplayed) {
  Start(2);
  Hello hello = TestHello(1, 2);
  hello.nonce = std::string(kNonceBytes, 'n');
  const std::string frame = Encode(hello);
  RawPeer first = RawPeer::At(address_);
  first.Say(frame);
  const auto challenge = ParseChallenge(first.Hear());
  ASSERT_TRUE(challenge.ok());
  const std::string proof = Encode(Proof{
      ProofOf(Prover::kRank, kTestToken, PayloadOf(frame), challenge->nonce),
      60000});
  RawPeer second = RawPeer::At(address_);
  second.Say(frame);
  EXPECT_TRUE(ParseChallenge(second.Hear()).ok());
  second.Say(proof);
  const auto refusal = ParseRefusal(second.Hear());
  ASSERT_TRUE(refusal.ok());
  EXPECT_EQ(refusal->reason, RefusalReason::kOtherToken);
  // Rank 0's proof isn't a rank's.
  RawPeer third = RawPeer::At(address_);
  third.Say(frame);
  const auto own = ParseChallenge(third.Hear());
  ASSERT_TRUE(own.ok());
  third.Say(Encode(Proof{own->proof, 60000}));
  EXPECT_TRUE(ParseRefusal(third.Hear()).ok());
  first.Say(proof);
  EXPECT_EQ(KindOf(first.Hear()), MessageKind::kAdmitted);
}

TEST_F(ServerTest, ARankThatComesTwiceIsRefused) {
  Start(2);
  const auto first = MustJoin(TestHello(1, 2));
  Hello again = TestHello(1, 2);
  again.host = "elsewhere";
  again.pid = 99;
  const absl::Status refused = Join(again).status();
  EXPECT_TRUE(absl::IsAlreadyExists(refused)) << refused;
  EXPECT_EQ(MessageOf(refused),
            "rank 1 is there already (host host1, process 4001), and came "
            "again (host elsewhere, process 99): give each process a rank of "
            "its own");
  EXPECT_THAT(Lines(1), ElementsAre(HasSubstr("rank 1 is there already")));
  // The run goes on.
  const auto rank0 = MustJoin(TestHello(0, 2));
  EXPECT_TRUE(rank0->AwaitAll(Soon()).ok());
  EXPECT_TRUE(first->AwaitAll(Soon()).ok());
}

TEST_F(ServerTest, AnotherWorldSizeEndsTheRun) {
  Start(2);
  const auto rank0 = MustJoin(TestHello(0, 2));
  const absl::Status refused = Join(TestHello(3, 4)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_EQ(MessageOf(refused),
            "rank 3 (host host3, process 4003) was started as one of 4 ranks, "
            "and rank 0 as one of 2: start all with the same number");
  const absl::Status ended = rank0->AwaitAll(Soon()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(ended)) << ended;
  EXPECT_EQ(MessageOf(ended), MessageOf(refused));
}

// Without a key and a token it may be somebody else's.
TEST_F(ServerTest, AnotherWorldSizeInARunWithoutAName) {
  Start(2, seconds(30), "", "");
  const auto join = [this](int rank, int world_size) {
    Hello hello = TestHello(rank, world_size);
    hello.run_key.clear();
    return Join(hello, "");
  };
  const auto rank0 = join(0, 2);
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(absl::IsFailedPrecondition(join(3, 4).status()));
  const auto rank1 = join(1, 2);
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  EXPECT_TRUE((*rank0)->AwaitAll(Soon()).ok());
}

TEST_F(ServerTest, AnotherVersionIsRefused) {
  Start(1);
  Hello hello = TestHello(0, 1);
  hello.version = kMeetingVersion + 1;
  const absl::Status refused = Join(hello).status();
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("another build of Capstan"));
}

TEST_F(ServerTest, ARankThatDiesIsNamedAtOnce) {
  Start(3);
  const auto rank0 = MustJoin(TestHello(0, 3));
  RawPeer peer = RawPeer::At(address_);
  EXPECT_EQ(KindOf(peer.JoinAs(TestHello(1, 3))), MessageKind::kAdmitted);
  peer.Close();
  const absl::Status ended = rank0->AwaitAll(Soon()).status();
  EXPECT_TRUE(absl::IsAborted(ended)) << ended;
  EXPECT_EQ(MessageOf(ended),
            "rank 1 (host host1, process 4001) has left the run");
  // As does who comes too late, before rank 0 has proved who it is.
  const absl::Status late = Join(TestHello(2, 3)).status();
  EXPECT_TRUE(absl::IsNotFound(late)) << late;
  EXPECT_EQ(MessageOf(late), MessageOf(ended));
}

TEST_F(ServerTest, TheImpatientEndItForAll) {
  Start(1000);
  const auto rank0 = MustJoin(TestHello(0, 1000));
  const auto rank1 = MustJoin(TestHello(1, 1000), In(milliseconds(100)));
  for (MeetingClient* client : {rank0.get(), rank1.get()}) {
    const absl::Status ended = client->AwaitAll(Soon()).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(ended)) << ended;
    EXPECT_EQ(MessageOf(ended),
              "only 2 of 1000 ranks came; missing: 2, 3, 4, 5, 6, 7, 8, 9 and "
              "990 more");
  }
}

TEST_F(ServerTest, ARankMustNotTalkBeforeAllHaveCome) {
  Start(2);
  RawPeer peer = RawPeer::At(address_);
  EXPECT_EQ(KindOf(peer.JoinAs(TestHello(1, 2))), MessageKind::kAdmitted);
  StoreRequest request;
  request.keys = {"k"};
  request.values = {"v"};
  peer.Say(Encode(request));
  EXPECT_TRUE(peer.IsClosedBy(Soon()));
}

// After the meeting.
TEST_F(ServerTest, ARankThatDiesEndsTheWaitsOfTheOthers) {
  Start(2);
  const auto rank0 = MustJoin(TestHello(0, 2));
  RawPeer peer = RawPeer::At(address_);
  EXPECT_EQ(KindOf(peer.JoinAs(TestHello(1, 2))), MessageKind::kAdmitted);
  EXPECT_EQ(KindOf(peer.Hear()), MessageKind::kMet);
  ASSERT_TRUE(rank0->AwaitAll(Soon()).ok());
  std::thread killer([&peer] {
    std::this_thread::sleep_for(milliseconds(50));
    peer.Close();
  });
  StoreRequest request;
  request.verb = StoreVerb::kWait;
  request.keys = {"its address"};
  const auto response = rank0->Call(request, Soon());
  killer.join();
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->result, StoreResult::kRankLost);
  EXPECT_EQ(response->text,
            "rank 1 (host host1, process 4001) has left the run");
}

TEST_F(ServerTest, RanksHearThatRank0HasGone) {
  Start(2);
  const auto rank1 = MustJoin(TestHello(1, 2));
  server_.reset();
  const absl::Status ended = rank1->AwaitAll(Soon()).status();
  EXPECT_TRUE(absl::IsUnavailable(ended)) << ended;
  EXPECT_THAT(MessageOf(ended), HasSubstr("rank 0 has left"));
}

}  // namespace
}  // namespace capstan
