// SPDX-License-Identifier: Apache-2.0
//
// Whole meetings, of ranks that are threads.
#include "cluster/meet/rendezvous.h"

#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/files.h"
#include "cluster/launch/progress.h"
#include "cluster/meet/client.h"
#include "cluster/meet/meeting_file.h"
#include "cluster/meet/meeting_for_test.h"
#include "cluster/meet/protocol.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

std::vector<RankInfo> Ranks(int count, int port) {
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back(TestRank(rank, count, port));
  }
  return ranks;
}

std::vector<RankInfo> RanksByFile(int count, const std::string& folder,
                                  const std::string& run_key = kTestKey) {
  std::vector<RankInfo> ranks;
  for (int rank = 0; rank < count; ++rank) {
    ranks.push_back(TestRankByFile(rank, count, folder));
    ranks.back().run_key = run_key;
  }
  return ranks;
}

// Starts after `delay`.
std::thread MeetLater(const RankInfo& rank, milliseconds delay,
                      absl::StatusOr<Meeting>* result) {
  return std::thread([rank, delay, result] {
    std::this_thread::sleep_for(delay);
    *result = Meet(rank, seconds(60));
  });
}

// Accepts connections as long as it lives, and says `text` on each.
class OtherProgram {
 public:
  OtherProgram(SocketAddress address, std::string text)
      : fd_(ListenAt(&address).value()), address_(address) {
    thread_ = std::thread([this, text] {
      std::vector<RawPeer> peers;
      while (!stop_) {
        SocketFd fd(accept4(fd_.get(), nullptr, nullptr, SOCK_NONBLOCK));
        if (!fd.valid()) {
          // sleeps: polls
          std::this_thread::sleep_for(milliseconds(5));
          continue;
        }
        ++visitors_;
        peers.emplace_back(std::move(fd));
        peers.back().Say(text);
      }
    });
  }
  ~OtherProgram() {
    stop_ = true;
    thread_.join();
  }
  const SocketAddress& address() const { return address_; }
  int visitors() const { return visitors_; }

 private:
  const SocketFd fd_;
  const SocketAddress address_;
  std::atomic<bool> stop_{false};
  std::atomic<int> visitors_{0};
  std::thread thread_;
};

// All see each other's keys.
void ExpectOneRun(const MeetingResults& results) {
  ExpectAllMet(results);
  for (const auto& result : results) {
    if (!result.ok()) return;
  }
  for (size_t i = 0; i < results.size(); ++i) {
    results[i]->store->set(absl::StrCat("from ", i), "x");
  }
  for (const auto& result : results) {
    EXPECT_EQ(result->store->getNumKeys(),
              static_cast<int64_t>(results.size()));
  }
}

TEST(MeetTest, ByAPortOnLoopback) {
  const MeetingResults results = MeetInThreads(Ranks(4, FreePort()));
  ExpectOneRun(results);
  for (const auto& result : results) {
    EXPECT_EQ(result->host_address, "127.0.0.1");
    EXPECT_EQ(result->interface, "lo");
  }
}

TEST(MeetTest, EightRanksMeetSoon) {
  const double begin = MonotonicSeconds();
  const MeetingResults results = MeetInThreads(Ranks(8, FreePort()));
  ExpectAllMet(results);
  RecordProperty("seconds", absl::StrCat(MonotonicSeconds() - begin));
  // Far more: other tests may be running.
  EXPECT_LT(MonotonicSeconds() - begin, 30);
}

TEST(MeetTest, TwoHundredAndFiftySixRanks) {
  const MeetingResults results = MeetInThreads(Ranks(256, FreePort()));
  ExpectAllMet(results);
}

TEST(MeetTest, Rank0MayComeLast) {
  const int port = FreePort();
  absl::StatusOr<Meeting> rank0;
  std::thread later =
      MeetLater(TestRank(0, 2, port), milliseconds(700), &rank0);
  const auto rank1 = Meet(TestRank(1, 2, port), seconds(60));
  later.join();
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(rank1.ok()) << rank1.status();
}

TEST(MeetTest, ByAFile) {
  const std::string folder = TestFolder();
  // Which rank 0 makes.
  const MeetingResults results = MeetInThreads(RanksByFile(4, folder + "/out"));
  ExpectOneRun(results);
  EXPECT_EQ(results[3]->host_address, "127.0.0.1");
  EXPECT_TRUE(fs::is_empty(folder + "/out"));
}

TEST(MeetTest, ALeftOverFileIsNoObstacle) {
  const std::string folder = TestFolder();
  const std::string path = MeetingFilePath(folder, kTestKey);
  OtherProgram silent(Loopback(), "");
  OtherProgram chatty(Loopback(), "HTTP/1.1 400 Bad Request\r\n\r\n");
  for (const int port :
       {FreePort(), silent.address().port(), chatty.address().port()}) {
    MeetingPlace place;
    place.addresses = {"127.0.0.1"};
    place.port = port;
    place.token = "of-an-earlier-run";
    place.host = "n0";
    const std::string text = Encode(place);
    ASSERT_TRUE(WriteWholeFile(path, text).ok());
    // Rank 1 looks there before rank 0 comes.
    const auto ranks = RanksByFile(2, folder);
    absl::StatusOr<Meeting> rank0;
    std::thread later = MeetLater(ranks[0], milliseconds(300), &rank0);
    const auto rank1 = Meet(ranks[1], seconds(60));
    later.join();
    EXPECT_TRUE(rank0.ok()) << rank0.status();
    EXPECT_TRUE(rank1.ok()) << rank1.status();
    EXPECT_FALSE(PathExists(path));
  }
  EXPECT_GT(silent.visitors(), 0);
  EXPECT_GT(chatty.visitors(), 0);
}

TEST(MeetTest, TwoRunsInOneFolder) {
  const std::string folder = TestFolder();
  MeetingResults first;
  MeetingResults second;
  std::thread one(
      [&] { first = MeetInThreads(RanksByFile(3, folder, "run 1")); });
  std::thread two(
      [&] { second = MeetInThreads(RanksByFile(3, folder, "run 2")); });
  one.join();
  two.join();
  ExpectOneRun(first);
  ExpectOneRun(second);
  EXPECT_TRUE(fs::is_empty(folder));
}

// While one of the same key is still waiting for its ranks.
TEST(MeetTest, ASecondRunOfTheSameKeyIsRefused) {
  const std::string folder = TestFolder();
  const auto ranks = RanksByFile(2, folder);
  absl::StatusOr<Meeting> rank0;
  std::thread first = MeetLater(ranks[0], milliseconds(0), &rank0);
  const std::string path = MeetingFilePath(folder, kTestKey);
  // sleeps: polls
  while (!PathExists(path)) std::this_thread::sleep_for(milliseconds(5));
  const absl::Status refused = Meet(ranks[0], seconds(5)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(MessageOf(refused), HasSubstr("another run is meeting by "));
  // It goes on.
  const auto rank1 = Meet(ranks[1], seconds(60));
  first.join();
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(rank1.ok()) << rank1.status();
}

TEST(MeetTest, ARankThatIsToldNothing) {
  const absl::Status status =
      Meet(TestRankByFile(1, 2, ""), seconds(1)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("set MASTER_ADDR and MASTER_PORT"));
}

TEST(MeetTest, NobodyThere) {
  const int port = FreePort();
  absl::Status status = Meet(TestRank(1, 2, port), seconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(MessageOf(status),
            absl::StrCat("rank 1 waited 1 s for rank 0 at 127.0.0.1:", port,
                         ": 127.0.0.1:", port, ": Connection refused"));
  const std::string folder = TestFolder();
  status = Meet(TestRankByFile(1, 2, folder), seconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(MessageOf(status),
            absl::StrCat("rank 1 waited 1 s for rank 0 by ",
                         MeetingFilePath(folder, kTestKey),
                         ": there is no such file; is it a folder that all "
                         "hosts share?"));
}

TEST(MeetTest, AFailedMeetingLeavesNoFile) {
  const std::string folder = TestFolder();
  const absl::Status status =
      Meet(TestRankByFile(0, 2, folder), milliseconds(500)).status();
  EXPECT_THAT(MessageOf(status),
              HasSubstr("only 1 of 2 ranks came; missing: 1"));
  EXPECT_TRUE(fs::is_empty(folder));
}

// Rank 0 tells the others what they waited for.
TEST(MeetTest, AllNameTheMissingRank) {
  std::vector<RankInfo> ranks = Ranks(3, FreePort());
  ranks.pop_back();
  for (const auto& result : MeetInThreads(ranks, seconds(3))) {
    EXPECT_TRUE(absl::IsUnavailable(result.status())) << result.status();
    EXPECT_THAT(MessageOf(result.status()),
                HasSubstr("only 2 of 3 ranks came; missing: 2"));
  }
}

// Long before time is up.
TEST(MeetTest, ThoseWhoWaitSaySo) {
  const int port = FreePort();
  std::vector<RankInfo> ranks = Ranks(3, port);
  ranks.pop_back();
  // The first of the next host.
  ranks[1].local_rank = 0;
  // Of another run, at a port where nobody is.
  RankInfo lost = TestRank(3, 4, FreePort());
  lost.local_rank = 0;
  ranks.push_back(lost);
  // Speaks for nobody.
  lost.rank = lost.local_rank = 2;
  ranks.push_back(lost);
  testing::internal::CaptureStderr();
  MeetInThreads(ranks, seconds(8));
  const std::string text = testing::internal::GetCapturedStderr();
  const std::vector<std::string> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  const std::string place = absl::StrCat("127.0.0.1:", port);
  EXPECT_THAT(lines,
              UnorderedElementsAre(
                  absl::StrCat("waiting for the other ranks at ", place,
                               " (rank 2 is missing)"),
                  absl::StrCat("rank 1 has found rank 0 at ", place,
                               ", and waits for the other ranks"),
                  AllOf(HasSubstr("rank 3 is waiting for rank 0 at 127.0.0.1:"),
                        HasSubstr("Connection refused"))));
}

// With launchers that start ranks again: one that has died is awaited, and its
// place is free for the one that comes instead.
TEST(MeetTest, ARankThatDiesBeforeAllHaveMetMayComeAgain) {
  const int port = FreePort();
  std::vector<RankInfo> ranks = Ranks(3, port);
  for (RankInfo& rank : ranks) rank.comes_again = true;
  ranks[1].restart = 1;
  absl::StatusOr<Meeting> rank0;
  absl::StatusOr<Meeting> rank1;
  std::thread first = MeetLater(ranks[0], milliseconds(0), &rank0);
  SocketAddress address = Loopback(port);
  while (!ConnectTo(address, Soon()).ok()) {
    // sleeps: polls
    std::this_thread::sleep_for(milliseconds(10));
  }
  RawPeer dies = RawPeer::At(address);
  EXPECT_EQ(KindOf(dies.JoinAs(TestHello(1, 3))), MessageKind::kAdmitted);
  // At first it finds the place taken.
  std::thread again = MeetLater(ranks[1], milliseconds(0), &rank1);
  std::this_thread::sleep_for(milliseconds(600));
  dies.Close();
  const auto rank2 = Meet(ranks[2], seconds(60));
  first.join();
  again.join();
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(rank1.ok()) << rank1.status();
  EXPECT_TRUE(rank2.ok()) << rank2.status();
}

// Rank 0's host is gone.
TEST(MeetTest, ARankThatReturnsSaysWhatToDoWithoutRank0) {
  RankInfo rank = Ranks(2, FreePort())[1];
  rank.comes_again = true;
  rank.restart = 2;
  const absl::Status status = Meet(rank, seconds(1)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(
      MessageOf(status),
      HasSubstr("start the run on other hosts: it goes on from its last "
                "checkpoint"));
}

// Each rank notes where the hosts are, and with that the others can go on
// without rank 0's host, if they are enough.
TEST(MeetTest, WithoutRank0TheOthersGoOn) {
  std::unique_ptr<SharedProgress> page = *SharedProgress::Create();
  std::vector<RankInfo> ranks = Ranks(2, FreePort());
  for (RankInfo& rank : ranks) {
    rank.nodes = 2;
    rank.node_rank = rank.rank;
    rank.local_rank = 0;
    rank.local_world_size = 1;
    rank.comes_again = true;
    rank.return_seconds = 0.5;
  }
  absl::StatusOr<Meeting> rank1;
  std::thread later = MeetLater(ranks[1], milliseconds(0), &rank1);
  absl::StatusOr<Meeting> rank0 = Meet(ranks[0], seconds(60));
  later.join();
  ASSERT_TRUE(rank0.ok()) << rank0.status();
  ASSERT_TRUE(rank1.ok()) << rank1.status();
  rank0 = absl::UnknownError("gone");
  const std::vector<std::string> hosts = absl::StrSplit(NotedHosts(), ',');
  ASSERT_EQ(hosts.size(), 2);
  EXPECT_EQ(hosts[0], hosts[1]);
  EXPECT_TRUE(SocketAddress::Parse(hosts[0], 0).has_value()) << hosts[0];
  ranks[1].restart = 1;
  absl::Status status = Meet(ranks[1], seconds(1)).status();
  EXPECT_THAT(MessageOf(status), HasSubstr("start the run on other hosts"));
  EXPECT_EQ(page->page().gone.Get(), "");
  ranks[1].min_processes = 1;
  status = Meet(ranks[1], seconds(60)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("host 0 has not come back in "));
  EXPECT_EQ(page->page().gone.Get(), "0");
}

// A host whose clock is late finds that the others have given up rank 0's.
TEST(MeetTest, TheOthersHaveGoneOnWithoutRank0) {
  std::unique_ptr<SharedProgress> page = *SharedProgress::Create();
  const std::string folder = TestFolder();
  RankInfo late = TestRankByFile(2, 3, folder);
  late.nodes = 3;
  late.node_rank = 2;
  late.local_rank = 0;
  late.local_world_size = 1;
  late.comes_again = true;
  late.restart = 1;
  late.return_seconds = 600;
  late.min_processes = 1;
  RankInfo first = late;
  first.rank = first.node_rank = 0;
  first.nodes = first.world_size = 2;
  absl::StatusOr<Meeting> rank0;
  std::thread meets = MeetLater(first, milliseconds(0), &rank0);
  const std::string file = MeetingFilePath(folder, first.run_key);
  auto place = ReadMeetingPlace(file);
  const Deadline limit = Soon();
  while (!place.ok() && MeetingClock::now() < limit) {
    // sleeps: polls
    std::this_thread::sleep_for(milliseconds(5));
    place = ReadMeetingPlace(file);
  }
  ASSERT_TRUE(place.ok()) << place.status();
  const std::string& here = place->addresses[0];
  // It was given up itself.
  NoteHosts(absl::StrCat(here, ",203.0.113.1,203.0.113.2"));
  absl::Status status = Meet(late, seconds(60)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(page->page().gone.Get(), "");
  NoteHosts(absl::StrCat("203.0.113.1,", here, ",203.0.113.2"));
  status = Meet(late, seconds(60)).status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(page->page().gone.Get(), "0");
  RankInfo second = first;
  second.rank = second.node_rank = 1;
  const auto rank1 = Meet(second, seconds(60));
  meets.join();
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(rank1.ok()) << rank1.status();
}

// Beyond what a connection may take.
TEST(MeetTest, Rank0WaitsAsLongAsItIsTold) {
  const std::vector<RankInfo> ranks = Ranks(2, FreePort());
  absl::StatusOr<Meeting> rank1;
  std::thread later = MeetLater(ranks[1], milliseconds(4000), &rank1);
  const auto rank0 = Meet(ranks[0], seconds(60));
  later.join();
  EXPECT_TRUE(rank0.ok()) << rank0.status();
  EXPECT_TRUE(rank1.ok()) << rank1.status();
}

TEST(MeetTest, StrangersAtThePort) {
  const int port = FreePort();
  absl::StatusOr<Meeting> rank0;
  std::thread first = MeetLater(TestRank(0, 2, port), milliseconds(0), &rank0);
  std::vector<RawPeer> strangers;
  const SocketAddress address = Loopback(port);
  for (int i = 0; i < 50; ++i) {
    auto fd = ConnectTo(address, Soon());
    while (!fd.ok()) {  // rank 0 isn't there yet
      // sleeps: polls
      std::this_thread::sleep_for(milliseconds(5));
      fd = ConnectTo(address, Soon());
    }
    strangers.emplace_back(*std::move(fd));
    if (i % 2 == 0) strangers.back().Say("GET / HTTP/1.1\r\n\r\n");
  }
  RankInfo other = TestRank(1, 2, port);
  other.run_key = "another run";
  const absl::Status refused = Meet(other, seconds(1)).status();
  EXPECT_FALSE(refused.ok());
  // Its last try may have ended for want of time.
  EXPECT_THAT(MessageOf(refused),
              AnyOf(HasSubstr("it belongs to run another run, and this is the "
                              "meeting of run test-run"),
                    HasSubstr("no answer")));
  const auto rank1 = Meet(TestRank(1, 2, port), seconds(60));
  first.join();
  ExpectOneRun({rank0, rank1});
}

TEST(MeetTest, OnlyTheChosenInterface) {
  RankInfo info = TestRank(0, 2, FreePort());
  info.nodes = 2;
  info.interface = "no-such-0";
  const absl::Status status = Meet(info, seconds(1)).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(MessageOf(status), HasSubstr("no network interface no-such-0"));
  // Two nodes on one host, as in a test of a scheduler.
  std::vector<RankInfo> ranks = Ranks(2, FreePort());
  for (RankInfo& rank : ranks) {
    rank.nodes = 2;
    rank.node_rank = rank.rank;
    rank.interface = "lo";
  }
  const MeetingResults results = MeetInThreads(ranks);
  ExpectOneRun(results);
  EXPECT_EQ(results[0]->interface, "lo");
  EXPECT_EQ(results[1]->host_address, "127.0.0.1");
}

TEST(MeetTest, NcclGetsTheInterface) {
  unsetenv("NCCL_SOCKET_IFNAME");
  RankInfo info;
  Meeting meeting;
  meeting.interface = "eth0";
  ChooseInterfaceOfNccl(info, meeting);
  EXPECT_EQ(getenv("NCCL_SOCKET_IFNAME"), nullptr);
  info.nodes = 2;
  ChooseInterfaceOfNccl(info, meeting);
  EXPECT_STREQ(getenv("NCCL_SOCKET_IFNAME"), "=eth0");
  meeting.interface = "eth1";
  ChooseInterfaceOfNccl(info, meeting);
  EXPECT_STREQ(getenv("NCCL_SOCKET_IFNAME"), "=eth0");
  unsetenv("NCCL_SOCKET_IFNAME");
}

class StoreTest : public testing::Test {
 protected:
  void SetUp() override {
    for (auto& result : MeetInThreads(Ranks(2, FreePort()))) {
      ASSERT_TRUE(result.ok()) << result.status();
      stores_.push_back(result->store);
    }
  }
  // Rank 0's, which serves, goes last.
  void TearDown() override {
    while (!stores_.empty()) stores_.pop_back();
  }

  static std::vector<uint8_t> Bytes(const std::string& text) {
    return std::vector<uint8_t>(text.begin(), text.end());
  }

  std::vector<c10::intrusive_ptr<c10d::Store>> stores_;
};

TEST_F(StoreTest, BehavesAsC10dsStores) {
  c10d::Store& zero = *stores_[0];
  c10d::Store& one = *stores_[1];
  zero.set("a", "1");
  EXPECT_EQ(one.get_to_str("a"), "1");
  EXPECT_EQ(one.add("count", 5), 5);
  EXPECT_EQ(zero.add("count", -7), -2);
  EXPECT_EQ(zero.get_to_str("count"), "-2");
  EXPECT_EQ(one.compareSet("a", "1", "2"), "2");
  EXPECT_EQ(one.compareSet("a", "1", "3"), "2");
  EXPECT_TRUE(one.check({"a", "count"}));
  EXPECT_FALSE(one.check({"a", "none"}));
  EXPECT_EQ(one.getNumKeys(), 2);
  EXPECT_TRUE(zero.deleteKey("a"));
  EXPECT_FALSE(zero.deleteKey("a"));
  one.multiSet({"x", "y"}, {Bytes("X"), Bytes("")});
  const auto values = zero.multiGet({"y", "x", "y"});
  ASSERT_EQ(values.size(), 3u);
  EXPECT_EQ(values[0], Bytes(""));
  EXPECT_EQ(values[1], Bytes("X"));
  EXPECT_TRUE(zero.multiGet({}).empty());
  one.setTimeout(milliseconds(123));
  EXPECT_EQ(one.getTimeout(), milliseconds(123));
  EXPECT_EQ(one.clone()->getTimeout(), milliseconds(123));
}

TEST_F(StoreTest, WaitsEndWithTheKeyOrInTime) {
  c10d::Store& zero = *stores_[0];
  c10d::Store& one = *stores_[1];
  std::thread setter([&zero] {
    std::this_thread::sleep_for(milliseconds(100));
    zero.set("late", "1");
  });
  EXPECT_EQ(one.get_to_str("late"), "1");
  setter.join();
  try {
    one.wait({"late", "never"}, milliseconds(100));
    ADD_FAILURE() << "no time-out";
  } catch (const c10::DistStoreError& e) {
    EXPECT_THAT(std::string(e.what_without_backtrace()),
                HasSubstr("timed out after 0.1 s: nobody has set 'never'"));
  }
  one.setTimeout(milliseconds(100));
  EXPECT_THROW(one.get("never"), c10::DistStoreError);
  EXPECT_THROW(one.wait({"never"}), c10::DistStoreError);
}

TEST_F(StoreTest, AWaitDoesNotBlockOthers) {
  const c10::intrusive_ptr<c10d::Store> copy = stores_[1]->clone();
  std::vector<std::thread> waiters;
  std::atomic<int> done{0};
  for (int i = 0; i < 8; ++i) {
    waiters.emplace_back([&, i] {
      c10d::Store& store = i % 2 == 0 ? *copy : *stores_[1];
      store.wait({absl::StrCat("go ", i)}, seconds(60));
      ++done;
    });
  }
  for (int i = 0; i < 100; ++i) stores_[1]->add("count", 1);
  EXPECT_EQ(done, 0);
  for (int i = 7; i >= 0; --i) copy->set(absl::StrCat("go ", i), "");
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(stores_[0]->get_to_str("count"), "100");
}

TEST_F(StoreTest, ManyAndLargeValues) {
  std::vector<std::string> keys;
  std::vector<std::vector<uint8_t>> values;
  for (int i = 0; i < 1000; ++i) {
    keys.push_back(absl::StrCat(std::string(1000, 'k'), i));
    // Three large ones: together they may have 16 MiB.
    values.push_back(i < 3 ? std::vector<uint8_t>(5 << 20, 7)
                           : Bytes(absl::StrCat(i)));
  }
  stores_[1]->multiSet(keys, values);
  stores_[0]->wait(keys);
  EXPECT_TRUE(stores_[0]->check(keys));
  EXPECT_TRUE(stores_[0]->multiGet(keys) == values);
  EXPECT_TRUE(stores_[1]->multiGet(keys) == values);
  try {
    stores_[1]->set("huge", std::vector<uint8_t>(64 << 20));
    ADD_FAILURE() << "no limit";
  } catch (const c10::DistStoreError& e) {
    EXPECT_THAT(std::string(e.what_without_backtrace()),
                HasSubstr("at most 16777216 are allowed"));
  }
  // The connection is as good as before.
  EXPECT_EQ(stores_[1]->add("count", 1), 1);
}

TEST_F(StoreTest, WithoutRank0ThereIsNoStore) {
  std::thread closer([this] {
    std::this_thread::sleep_for(milliseconds(50));
    stores_[0].reset();
  });
  try {
    stores_[1]->get("never");
    ADD_FAILURE() << "no error";
  } catch (const c10::DistNetworkError& e) {
    EXPECT_THAT(std::string(e.what_without_backtrace()),
                AnyOf(HasSubstr("lost rank 0"), HasSubstr("rank 0 (host ")));
  }
  closer.join();
  EXPECT_THROW(stores_[1]->set("a", "b"), c10::DistNetworkError);
}

}  // namespace
}  // namespace capstan
