// SPDX-License-Identifier: Apache-2.0
#include "cluster/members/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "base/free_port_for_test.h"
#include "base/scratch_folder.h"
#include "cluster/launch/network.h"
#include "cluster/members/greeter.h"
#include "cluster/members/leader.h"

namespace capstan {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

// A launcher without ranks, on a thread of its own.
class Host {
 public:
  explicit Host(const MembersOptions& options)
      : hosts_(*JoinHosts(options)), thread_([this] { Run(); }) {}
  // Its process is gone.
  ~Host() {
    ends_ = true;
    thread_.join();
  }

  template <typename Function>
  auto With(Function function) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return function(*hosts_);
  }
  ChangingHosts::World world() {
    return With([](ChangingHosts& hosts) { return hosts.world(); });
  }
  ChangingHosts::Ending ending() {
    return With([](ChangingHosts& hosts) { return hosts.ending(); });
  }
  std::string waits() {
    return With([](ChangingHosts& hosts) { return hosts.Waits(); });
  }

 private:
  void Run() {
    while (!ends_) {
      pollfd fd = {hosts_->fd(), POLLIN, 0};
      poll(&fd, 1, 20);
      const std::lock_guard<std::mutex> lock(mutex_);
      hosts_->Handle();
    }
  }

  std::mutex mutex_;
  const std::unique_ptr<ChangingHosts> hosts_;
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

class MembersTest : public testing::Test {
 protected:
  MembersTest() {
    options_.host = "127.0.0.1";
    options_.port = FreePort();
    options_.run_key = "test";
    options_.token = "secret";
    options_.digest = "1";
    options_.roster.max_ranks = 8;
    options_.roster.max_restarts = 10;
    options_.roster.first_hosts = 2;
    options_.roster.gathering = milliseconds(50);
  }

  std::unique_ptr<Host> Start() { return std::make_unique<Host>(options_); }
  static bool Becomes(const std::function<bool()>& state) {
    const Deadline end = MeetingClock::now() + seconds(20);
    while (!state()) {
      if (MeetingClock::now() > end) return false;
      // sleeps: polls
      std::this_thread::sleep_for(milliseconds(5));
    }
    return true;
  }
  // Waits until all are in the world `number`, or a later one, of as many.
  template <typename... Hosts>
  static bool Meet(int64_t number, Hosts&... hosts) {
    const int count = sizeof...(hosts);
    return Becomes([&] {
      return ((hosts->world().number >= number &&
               hosts->world().nodes == count &&
               hosts->world().node_rank >= 0) &&
              ...);
    });
  }

  MembersOptions options_;
};

TEST_F(MembersTest, HostsAgreeOnAWorld) {
  const auto a = Start();
  ASSERT_TRUE(Becomes([&] {
    return a->waits() == "waiting for more hosts at 127.0.0.1:" +
                             std::to_string(options_.port);
  })) << a->waits();
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  const ChangingHosts::World first = a->world();
  const ChangingHosts::World second = b->world();
  EXPECT_EQ(first.node_rank, 0);
  EXPECT_EQ(second.node_rank, 1);
  EXPECT_EQ(second.master_addr, "127.0.0.1");
  EXPECT_EQ(second.master_port, first.master_port);
  EXPECT_NE(second.master_port, options_.port);
  EXPECT_EQ(second.addresses.size(), 2);
  EXPECT_FALSE(second.gentle);
  const auto listening = [](ChangingHosts& hosts) {
    return hosts.TakeListening();
  };
  const SocketFd taken(a->With(listening));
  EXPECT_EQ(SocketAddress::OwnEnd(taken.get()).port(), first.master_port);
  EXPECT_EQ(b->With(listening), -1);
}

TEST_F(MembersTest, OneThatComesLaterIsTakenInAfterAStep) {
  const auto a = Start();
  // It leads; of two that start at once either may.
  ASSERT_TRUE(Becomes([&] { return a->waits()[0] == 'w'; }));
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  const auto c = Start();
  ASSERT_TRUE(Becomes([&] {
    return c->waits().find("is a spare") != std::string::npos;
  })) << c->waits();
  a->With([](ChangingHosts& hosts) {
    hosts.Progressed(1, 1);
    return 0;
  });
  ASSERT_TRUE(Meet(2, a, b, c));
  EXPECT_TRUE(a->world().gentle);
  EXPECT_EQ(a->world().node_rank, 0);
  EXPECT_EQ(c->world().node_rank, 2);
}

TEST_F(MembersTest, OneThatIsGoneIsLeftOut) {
  const auto a = Start();
  auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  b.reset();
  ASSERT_TRUE(Meet(2, a));
  EXPECT_FALSE(a->world().gentle);
  EXPECT_THAT(a->world().why, HasSubstr("is gone"));
}

TEST_F(MembersTest, TheNextOneLeadsWithoutTheLeader) {
  options_.roster.first_hosts = 3;
  auto a = Start();
  auto b = Start();
  auto c = Start();
  ASSERT_TRUE(Meet(1, a, b, c));
  Host* const leader = a->world().node_rank == 0   ? a.get()
                       : b->world().node_rank == 0 ? b.get()
                                                   : c.get();
  std::unique_ptr<Host>& gone = leader == a.get()   ? a
                                : leader == b.get() ? b
                                                    : c;
  std::unique_ptr<Host>& one = leader == a.get() ? b : a;
  std::unique_ptr<Host>& other = leader == c.get() ? b : c;
  gone.reset();
  ASSERT_TRUE(Meet(2, one, other));
  EXPECT_FALSE(one->world().gentle);
  EXPECT_EQ(one->world().node_rank + other->world().node_rank, 1);
  // A new host finds it at the address of old, on this machine.
  gone = Start();
  std::unique_ptr<Host>& second = one->world().node_rank == 0 ? one : other;
  second->With([](ChangingHosts& hosts) {
    hosts.Progressed(hosts.world().number, 1);
    return 0;
  });
  ASSERT_TRUE(Meet(3, one, other, gone));
}

TEST_F(MembersTest, ALeaderThatLeavesHandsOverGently) {
  const auto a = Start();
  ASSERT_TRUE(Becomes([&] { return !a->waits().empty(); }));
  ASSERT_TRUE(Becomes([&] { return a->waits()[0] == 'w'; }));
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  a->With([](ChangingHosts& hosts) {
    hosts.Leave();
    return 0;
  });
  ASSERT_TRUE(Meet(2, b));
  EXPECT_TRUE(b->world().gentle);
  EXPECT_EQ(a->world().number, 2);
  EXPECT_TRUE(a->world().gentle);
  EXPECT_EQ(a->world().node_rank, -1);
  EXPECT_EQ(a->ending().text, "this host has left the run");
  EXPECT_EQ(a->ending().code, 0);
}

// Each of those who are gone or leave would otherwise be waited for, one after
// another.
TEST_F(MembersTest, WhoLeavesAsTheLeaderDiesIsPassedOver) {
  options_.roster.first_hosts = 5;
  std::unique_ptr<Host> started[5];
  for (auto& host : started) host = Start();
  ASSERT_TRUE(
      Meet(1, started[0], started[1], started[2], started[3], started[4]));
  std::unique_ptr<Host> ranks[5];
  for (auto& host : started) {
    const int rank = host->world().node_rank;
    ranks[rank] = std::move(host);
  }
  const Deadline began = MeetingClock::now();
  ranks[0].reset();
  for (const int rank : {1, 2}) {
    ranks[rank]->With([](ChangingHosts& hosts) {
      hosts.Leave();
      return 0;
    });
  }
  ASSERT_TRUE(Meet(2, ranks[3], ranks[4]));
  EXPECT_FALSE(ranks[3]->world().gentle) << "the leader's ranks are gone";
  EXPECT_LT(MeetingClock::now() - began, seconds(5));
  for (const int rank : {1, 2}) {
    EXPECT_TRUE(Becomes([&] {
      return ranks[rank]->ending().text == "this host has left the run";
    }));
  }
}

TEST_F(MembersTest, ASpareThatLeavesEndsAtOnce) {
  options_.roster.max_ranks = 2;
  const auto a = Start();
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  const auto spare = Start();
  ASSERT_TRUE(Becomes(
      [&] { return spare->waits().find("is a spare") != std::string::npos; }));
  spare->With([](ChangingHosts& hosts) {
    hosts.Leave();
    return 0;
  });
  ASSERT_TRUE(Becomes([&] { return !spare->ending().text.empty(); }));
  EXPECT_EQ(spare->ending().text, "this host has left the run");
  EXPECT_EQ(spare->ending().code, 0);
  EXPECT_EQ(a->world().number, 1);
}

TEST_F(MembersTest, AllStopIfTooManyLeave) {
  options_.roster.min_ranks = 2;
  const auto a = Start();
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  b->With([](ChangingHosts& hosts) {
    hosts.Leave();
    return 0;
  });
  ASSERT_TRUE(Becomes([&] { return a->ending().stops && b->ending().stops; }));
}

TEST_F(MembersTest, DeadRanksBeginANewWorld) {
  const auto a = Start();
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  b->With([](ChangingHosts& hosts) {
    hosts.Died(1, 5, "rank 1 was killed", true);
    return 0;
  });
  ASSERT_TRUE(Meet(2, a, b));
  EXPECT_THAT(b->world().why, HasSubstr("rank 1 was killed"));
}

TEST_F(MembersTest, AHostIsLeftOutByItsNumber) {
  options_.roster.first_hosts = 3;
  const auto a = Start();
  const auto b = Start();
  const auto c = Start();
  ASSERT_TRUE(Meet(1, a, b, c));
  Host* all[] = {a.get(), b.get(), c.get()};
  a->With([](ChangingHosts& hosts) {
    hosts.LeaveOut(1, "2");
    return 0;
  });
  for (Host* host : all) {
    const bool out = host->world().number == 1 && host->world().node_rank == 2;
    ASSERT_TRUE(Becomes([&] { return host->world().number == 2; }));
    if (!out) continue;
    EXPECT_TRUE(host->world().left_out);
    EXPECT_EQ(host->ending().code, 1);
  }
}

TEST_F(MembersTest, AnotherConfigIsRefused) {
  const auto a = Start();
  ASSERT_TRUE(Becomes([&] { return a->waits()[0] == 'w'; }));
  options_.digest = "2";
  const auto b = Start();
  ASSERT_TRUE(Becomes([&] { return !b->ending().text.empty(); }));
  EXPECT_THAT(b->ending().text, HasSubstr("config isn't that of the run's"));
  EXPECT_EQ(b->ending().code, 1);
  EXPECT_EQ(a->ending().text, "");
}

TEST_F(MembersTest, StrangersDontDisturb) {
  const auto a = Start();
  ASSERT_TRUE(Becomes([&] { return a->waits()[0] == 'w'; }));
  options_.token = "another";
  const auto stranger = Start();
  ASSERT_TRUE(Becomes([&] {
    return stranger->waits().find("isn't of this run") != std::string::npos;
  })) << stranger->waits();
  SocketFd garbage =
      *ConnectTo(*SocketAddress::Parse(options_.host, options_.port),
                 MeetingClock::now() + seconds(5));
  ASSERT_TRUE(SendAll(garbage.get(), std::string(100000, 'x'),
                      MeetingClock::now() + seconds(5))
                  .ok());
  options_.token = "secret";
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
}

TEST_F(MembersTest, TheFirstHostFindsTheRunThatGoesOnWithoutIt) {
  const ScratchFolder folder;
  options_.folder = folder.path();
  auto a = Start();
  ASSERT_TRUE(Becomes([&] { return a->waits()[0] == 'w'; }));
  const auto b = Start();
  ASSERT_TRUE(Meet(1, a, b));
  // Another machine's port.
  options_.port = FreePort();
  a.reset();
  ASSERT_TRUE(Meet(2, b));
  b->With([](ChangingHosts& hosts) {
    hosts.Progressed(2, 1);
    return 0;
  });
  a = Start();
  ASSERT_TRUE(Meet(3, a, b));
  EXPECT_EQ(b->world().node_rank, 0);
}

// What leads another part of the run, by its word alone, and where that
// listens.
class Rival {
 public:
  Rival(const MembersOptions& options, int port)
      : epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    Greeter greeter(epoll_.get(), KeyOfHosts(options), options.token,
                    seconds(20));
    greeter.Ask({*SocketAddress::Parse(options.host, options.port)});
    while (connection_ == nullptr && greeter.asks()) {
      epoll_event event;
      connection_ = greeter.Continue(MeetingClock::now());
      if (connection_ == nullptr) epoll_wait(epoll_.get(), &event, 1, 100);
    }
    if (connection_ == nullptr) return;
    connection_->Send({{"kind", "enrol"},
                       {"id", "rival/1"},
                       {"port", port},
                       {"ranks", 1},
                       {"digest", options.digest},
                       {"number", 9},
                       {"leads", {true, 9, 9}}});
  }
  bool answered() const { return connection_ != nullptr; }

 private:
  const SocketFd epoll_;
  std::unique_ptr<HostConnection> connection_;
};

TEST_F(MembersTest, ALeaderWithLessToShowFollowsTheOther) {
  options_.roster.first_hosts = 1;
  const int port = options_.port;
  const auto a = Start();
  ASSERT_TRUE(Meet(1, a));
  a->With([](ChangingHosts& hosts) {
    hosts.Progressed(1, 1);
    return 0;
  });
  // As if a network had been cut: another leader of the run.
  options_.port = FreePort();
  const auto b = Start();
  ASSERT_TRUE(Meet(1, b));
  const auto c = Start();
  ASSERT_TRUE(Becomes(
      [&] { return c->waits().find("is a spare") != std::string::npos; }));
  const Rival rival(options_, port);
  ASSERT_TRUE(rival.answered());
  ASSERT_TRUE(Becomes([&] {
    a->With([](ChangingHosts& hosts) {
      hosts.Progressed(hosts.world().number, 2);
      return 0;
    });
    return a->world().nodes == 3 && b->world().node_rank > 0 &&
           c->world().node_rank > 0;
  }));
  EXPECT_EQ(a->world().node_rank, 0);
  EXPECT_TRUE(a->world().gentle);
  EXPECT_EQ(b->ending().text, "");
}

TEST_F(MembersTest, ALeaderThatIsntThereIsNotFollowed) {
  options_.roster.first_hosts = 1;
  const auto a = Start();
  ASSERT_TRUE(Meet(1, a));
  const Rival rival(options_, FreePort());
  ASSERT_TRUE(rival.answered());
  a->With([](ChangingHosts& hosts) {
    hosts.Progressed(1, 1);
    return 0;
  });
  const auto b = Start();
  ASSERT_TRUE(Meet(2, a, b));
  EXPECT_EQ(a->world().node_rank, 0);
}

TEST_F(MembersTest, AHostThatAcceptsAndDoesntAnswerBlocksNothing) {
  SocketAddress address = *SocketAddress::Parse(options_.host, options_.port);
  const absl::StatusOr<SocketFd> mute = ListenAt(&address);
  ASSERT_TRUE(mute.ok());
  const std::unique_ptr<ChangingHosts> hosts = *JoinHosts(options_);
  const Deadline began = MeetingClock::now();
  for (int i = 0; i < 10; ++i) {
    pollfd fd = {hosts->fd(), POLLIN, 0};
    poll(&fd, 1, 20);
    hosts->Handle();
  }
  EXPECT_LT(MeetingClock::now() - began, seconds(3));
}

TEST(HostConnectionTest, IsWatchedForRoomOnlyWhileThatIsMissed) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends), 0);
  HostConnection connection{SocketFd(ends[0])};
  const SocketFd other(ends[1]);
  const SocketFd epoll(epoll_create1(EPOLL_CLOEXEC));
  const auto events = [&]() -> uint32_t {
    epoll_event event;
    return epoll_wait(epoll.get(), &event, 1, 0) == 1 ? event.events : 0;
  };
  connection.Watch(epoll.get());
  EXPECT_EQ(events(), 0);
  while (!connection.blocked()) connection.SendFrame(std::string(65536, 'x'));
  connection.Watch(epoll.get());
  EXPECT_EQ(events(), 0);
  std::string got(size_t{1} << 20, ' ');
  while (recv(other.get(), &got[0], got.size(), 0) > 0) {
  }
  EXPECT_EQ(events(), EPOLLOUT);
  connection.Flush();
  EXPECT_FALSE(connection.blocked());
  connection.Watch(epoll.get());
  EXPECT_EQ(events(), 0);
  // It asks epoll for no more than what changes.
  ASSERT_EQ(epoll_ctl(epoll.get(), EPOLL_CTL_DEL, connection.fd(), nullptr), 0);
  connection.Watch(epoll.get());
  ASSERT_EQ(send(other.get(), "x", 1, 0), 1);
  EXPECT_EQ(events(), 0);
}

TEST_F(MembersTest, ItSaysWhomItLooksFor) {
  options_.patience = milliseconds(300);
  // Of no interface here (RFC 5737).
  options_.host = "192.0.2.1";
  const auto a = Start();
  ASSERT_TRUE(Becomes([&] { return !a->ending().text.empty(); }));
  EXPECT_THAT(a->ending().text, HasSubstr("no host of the run was found at "
                                          "192.0.2.1"));
}

}  // namespace
}  // namespace capstan
