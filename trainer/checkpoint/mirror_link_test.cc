// SPDX-License-Identifier: Apache-2.0
#include "trainer/checkpoint/mirror_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/optional.h"
#include "trainer/checkpoint/checkpoint_testing.h"

namespace capstan {
namespace {

constexpr int kOwn = 3;
constexpr int kHeld = 2;

// One rank of each of two hosts, in one process.
class MirrorLinkTest : public ::testing::Test {
 protected:
  struct Host {
    std::vector<int> files;
    std::unique_ptr<MirrorServer> server;
    std::unique_ptr<Mirror> mirror;

    std::vector<int> own() const {
      return {files.begin(), files.begin() + kOwn};
    }
    std::vector<int> held() const {
      return {files.begin() + kOwn, files.end()};
    }
  };

  void SetUp() override {
    for (Host& host : hosts_) {
      for (int i = 0; i < kOwn + kHeld; ++i) {
        host.files.push_back(memfd_create("mirror", MFD_CLOEXEC));
        ASSERT_GE(host.files.back(), 0);
      }
    }
    Start(0, absl::nullopt);
  }
  void TearDown() override {
    for (Host& host : hosts_) {
      host.server.reset();
      for (const int fd : host.files) close(fd);
    }
  }

  CheckpointParts Parts() { return run_.Parts(group_); }

  // As ranks that the launchers have started `restart` times anew.
  void Start(int restart, const absl::optional<MirroredStep>& source) {
    absl::optional<MirrorKey> key;
    if (source.has_value()) key = source->key;
    for (Host& host : hosts_) {
      host.server.reset();
      host.mirror = std::make_unique<Mirror>(host.own(), restart, source, true);
      ASSERT_TRUE(host.mirror->Allocate(Parts()).ok());
      for (const int file : host.held()) {
        ASSERT_TRUE(
            AllocateMirror(file, host.mirror->ImageBytes(Parts())).ok());
      }
      MirrorServer::Options options;
      options.host = "127.0.0.1";
      options.files = host.files;
      options.held = kHeld;
      auto server = MirrorServer::Start(options);
      ASSERT_TRUE(server.ok()) << server.status();
      host.server = *std::move(server);
      host.server->TakeIn(key);
    }
  }

  Mirror::Copied Copy(int64_t step) {
    run_.SetValues(static_cast<float>(step) + 0.5f);
    return *hosts_[0].mirror->Copy(StateAt(step), Parts());
  }

  static void AwaitThrough(const MirrorSender& sender) {
    for (int i = 0; i < 3000 && !sender.through(); ++i) {
      // sleeps: polls
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(sender.through()) << sender.problem();
  }

  // Loads what host 1's files hold of the one rank; -1 if nothing.
  int64_t Load(const absl::optional<MirroredStep>& newest) {
    if (!newest.has_value()) return -1;
    FakeRun fresh(0, {0, FakeRun::kFlat});
    const auto state = LoadMirroredStep(*newest, fresh.Parts(group_));
    EXPECT_TRUE(state.ok()) << state.status();
    EXPECT_TRUE(fresh.HasValues(static_cast<float>(newest->state.step) + 0.5f));
    return state.ok() ? state->step : -1;
  }

  ThreadMeeting meeting_{1};
  ThreadGroup group_{&meeting_, 0};
  FakeRun run_{0, {0, FakeRun::kFlat}};
  Host hosts_[2];
};

TEST_F(MirrorLinkTest, APeerHoldsTheLastTwo) {
  MirrorSender sender(hosts_[1].server->address(), std::chrono::seconds(1),
                      [](const std::string& how) { ADD_FAILURE() << how; });
  EXPECT_TRUE(sender.through());
  for (int64_t step = 1; step <= 5; ++step) {
    hosts_[0].mirror->PeersHave();
    const Mirror::Copied image = Copy(step);
    hosts_[0].mirror->Sending();
    sender.Send(image);
    AwaitThrough(sender);
    EXPECT_EQ(Load(NewestMirroredStep(MirrorsIn(hosts_[1].held()))), step);
  }
  EXPECT_TRUE(sender.problem().ok());
  std::vector<int64_t> steps;
  for (const int fd : hosts_[1].held()) {
    steps.push_back(
        NewestMirroredStep(MirrorsIn(std::vector<int>{fd}))->state.step);
  }
  EXPECT_THAT(steps, testing::UnorderedElementsAre(4, 5));
}

TEST_F(MirrorLinkTest, AnotherHostReadsAnImage) {
  Copy(3);
  const auto connection =
      std::make_shared<MirrorConnection>(hosts_[0].server->address());
  FoundMirror found;
  found.image = *MirrorImageIn(hosts_[0].files[0]);
  found.read = [connection](int64_t offset, int64_t bytes, char* out) {
    return connection->Read(0, offset, bytes, out);
  };
  EXPECT_EQ(Load(NewestMirroredStep(std::vector<FoundMirror>{found})), 3);
  char byte = 0;
  EXPECT_FALSE(connection->Read(0, int64_t{1} << 40, 1, &byte).ok());
  // It connects again.
  EXPECT_TRUE(connection->Read(0, 0, 1, &byte).ok());
  EXPECT_FALSE(connection->Read(7, 0, 1, &byte).ok());
  EXPECT_FALSE(connection->Read(0, -1, 1, &byte).ok());
}

TEST_F(MirrorLinkTest, AnImageThatBreaksOffIsNone) {
  MirrorConnection connection(hosts_[1].server->address());
  ASSERT_TRUE(connection.Put(Copy(1)).ok());
  Mirror::Copied cut = Copy(2);
  // Its memory ends early: the send fails in the midst of it.
  const int64_t bytes = 4 * 4096;
  char* const memory = static_cast<char*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
           /*fd=*/-1, /*offset=*/0));
  ASSERT_NE(memory, MAP_FAILED);
  munmap(memory + bytes / 2, bytes / 2);
  cut.memory = memory;
  cut.bytes = bytes;
  EXPECT_FALSE(connection.Put(cut).ok());
  munmap(memory, bytes / 2);
  EXPECT_EQ(Load(NewestMirroredStep(MirrorsIn(hosts_[1].held()))), 1);
  // The next one goes where that was.
  ASSERT_TRUE(connection.Put(Copy(3)).ok());
  EXPECT_EQ(Load(NewestMirroredStep(MirrorsIn(hosts_[1].held()))), 3);
}

// Its sender didn't hear that it had arrived.
TEST_F(MirrorLinkTest, AnImageThatComesTwiceTakesOnePlace) {
  MirrorConnection connection(hosts_[1].server->address());
  ASSERT_TRUE(connection.Put(Copy(1)).ok());
  const Mirror::Copied image = Copy(2);
  ASSERT_TRUE(connection.Put(image).ok());
  ASSERT_TRUE(connection.Put(image).ok());
  EXPECT_EQ(NewestMirroredStep(MirrorsIn(std::vector<int>{hosts_[1].held()[0]}))
                ->state.step,
            1);
  EXPECT_EQ(Load(NewestMirroredStep(MirrorsIn(hosts_[1].held()))), 2);
}

TEST_F(MirrorLinkTest, WhatARestartGoesOnFromStays) {
  {
    MirrorConnection connection(hosts_[1].server->address());
    ASSERT_TRUE(connection.Put(Copy(1)).ok());
    ASSERT_TRUE(connection.Put(Copy(2)).ok());
  }
  const auto one =
      NewestMirroredStep(MirrorsIn(std::vector<int>{hosts_[1].held()[0]}));
  ASSERT_TRUE(one.has_value());
  ASSERT_EQ(one->state.step, 1);
  Start(1, one);
  MirrorConnection connection(hosts_[1].server->address());
  ASSERT_TRUE(connection.Put(Copy(11)).ok());
  // Not in the place of 1, although that is older than 2.
  EXPECT_EQ(Load(NewestMirroredStep(
                MirrorsIn(std::vector<int>{hosts_[1].held()[0]}))),
            1);
  EXPECT_EQ(Load(NewestMirroredStep(MirrorsIn(hosts_[1].held()))), 11);
  ASSERT_TRUE(connection.Put(Copy(12)).ok());
  EXPECT_EQ(Load(NewestMirroredStep(
                MirrorsIn(std::vector<int>{hosts_[1].held()[0]}))),
            12);
}

TEST_F(MirrorLinkTest, ATooLargeImageIsRefused) {
  Mirror::Copied image = Copy(1);
  image.bytes = int64_t{1} << 40;
  MirrorConnection connection(hosts_[1].server->address());
  EXPECT_FALSE(connection.Put(image).ok());
}

TEST_F(MirrorLinkTest, StrangersGetNothing) {
  Copy(1);
  std::vector<std::string> parts =
      absl::StrSplit(hosts_[0].server->address(), ' ');
  parts[0] = std::string(parts[0].size(), '0');
  MirrorConnection stranger(
      absl::StrCat(parts[0], " ", parts[1], " ", parts[2]));
  char byte = 0;
  EXPECT_TRUE(absl::IsNotFound(stranger.Read(0, 0, 1, &byte)));
  // Nor by talking nonsense, or nothing; and they keep nobody else out.
  int port = std::stoi(parts[1]);
  std::vector<SocketFd> others;
  for (const char* words : {"GET / HTTP/1.1\r\n\r\n", "\1\0\0\0\1", ""}) {
    auto fd = ConnectTo(*SocketAddress::Parse("127.0.0.1", port),
                        MeetingClock::now() + std::chrono::seconds(5));
    ASSERT_TRUE(fd.ok());
    ASSERT_TRUE(
        SendAll(fd->get(), words, MeetingClock::now() + std::chrono::seconds(5))
            .ok());
    others.push_back(*std::move(fd));
  }
  MirrorConnection rank(hosts_[0].server->address());
  EXPECT_TRUE(rank.Read(0, 0, 1, &byte).ok());
}

// A server in a process of its own, whose held files have room for `bytes`.
struct OtherProcess {
  pid_t pid = -1;
  std::string address;

  explicit OtherProcess(int64_t bytes) {
    int ready[2];
    if (pipe(ready) != 0) return;
    pid = fork();
    if (pid == 0) Serve(ready[1], bytes);
    close(ready[1]);
    char text[256];
    const ssize_t n = read(ready[0], text, sizeof(text));
    if (n > 0) address.assign(text, static_cast<size_t>(n));
    close(ready[0]);
  }
  ~OtherProcess() {
    if (pid <= 0) return;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }

  [[noreturn]] static void Serve(int ready, int64_t bytes) {
    MirrorServer::Options options;
    options.host = "127.0.0.1";
    for (int i = 0; i < kHeld; ++i) {
      options.files.push_back(memfd_create("mirror", MFD_CLOEXEC));
      if (!AllocateMirror(options.files.back(), bytes).ok()) _exit(1);
    }
    options.held = kHeld;
    const auto server = MirrorServer::Start(options);
    if (!server.ok()) _exit(1);
    (*server)->TakeIn(absl::nullopt);
    const std::string& address = (*server)->address();
    if (write(ready, address.data(), address.size()) < 0) _exit(1);
    while (true) pause();
  }
};

// Its kernel answers: idle, and with an image that waits for room, larger than
// all buffers of sockets. It gets the image once it goes on.
TEST_F(MirrorLinkTest, AServerThatIsStoppedIsNotLost) {
  constexpr int64_t kBytes = int64_t{128} << 20;
  OtherProcess other(kBytes);
  ASSERT_FALSE(other.address.empty());
  MirrorSender sender(other.address, std::chrono::seconds(1),
                      [](const std::string& how) { ADD_FAILURE() << how; });
  sender.Send(Copy(1));
  AwaitThrough(sender);
  ASSERT_EQ(kill(other.pid, SIGSTOP), 0);
  std::this_thread::sleep_for(std::chrono::seconds(3));
  const std::string memory(kBytes, 'x');
  Mirror::Copied large;
  large.key = {0, 2};
  large.memory = memory.data();
  large.bytes = kBytes;
  sender.Send(large);
  std::this_thread::sleep_for(std::chrono::seconds(8));
  EXPECT_FALSE(sender.through());
  EXPECT_TRUE(sender.problem().ok()) << sender.problem();
  ASSERT_EQ(kill(other.pid, SIGCONT), 0);
  AwaitThrough(sender);
}

// The sender tries again, and says so once.
TEST_F(MirrorLinkTest, AServerThatIsGone) {
  const std::string address = hosts_[1].server->address();
  hosts_[1].server.reset();
  std::atomic<int> told{0};
  MirrorSender sender(address, std::chrono::seconds(60),
                      [&told](const std::string& how) {
                        EXPECT_THAT(how, testing::HasSubstr("is gone"));
                        ++told;
                      });
  sender.Send(Copy(1));
  for (int i = 0; i < 3000 && told == 0; ++i) {
    // sleeps: polls
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(told, 1);
  EXPECT_FALSE(sender.problem().ok());
  EXPECT_FALSE(sender.through());
}

TEST_F(MirrorLinkTest, AServerThatMayGo) {
  MirrorSender sender(hosts_[1].server->address(), std::chrono::seconds(60),
                      [](const std::string& how) { ADD_FAILURE() << how; });
  sender.Send(Copy(1));
  AwaitThrough(sender);
  sender.MayLeave();
  hosts_[1].server.reset();
  std::this_thread::sleep_for(std::chrono::milliseconds(2500));
  EXPECT_FALSE(sender.problem().ok());
}

// A port that takes no more connections drops what comes: as of a host without
// power, on a network where that can be had anywhere.
TEST_F(MirrorLinkTest, AHostThatTakesNoConnection) {
  SocketAddress address = *SocketAddress::Parse("127.0.0.1", 0);
  const auto full = ListenAt(&address);
  ASSERT_TRUE(full.ok());
  ASSERT_EQ(listen(full->get(), 0), 0);
  std::vector<SocketFd> others;
  for (int i = 0; i < 16; ++i) {
    auto fd = ConnectTo(address,
                        MeetingClock::now() + std::chrono::milliseconds(300));
    if (!fd.ok()) break;
    others.push_back(*std::move(fd));
  }
  ASSERT_LT(others.size(), 16u);
  std::atomic<int> told{0};
  MirrorSender sender(absl::StrCat("00 ", address.port(), " 127.0.0.1"),
                      std::chrono::milliseconds(100),
                      [&told](const std::string& how) {
                        EXPECT_THAT(how, testing::HasSubstr("not answered"));
                        ++told;
                      });
  // Silence is no leaving (tests/sim, seed 430968).
  sender.MayLeave();
  for (int i = 0; i < 6000 && told == 0; ++i) {
    // sleeps: polls
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(told, 1);
}

// An address that nobody has (RFC 5737): as of a host without power.
TEST_F(MirrorLinkTest, AHostThatIsSilent) {
  std::atomic<int> told{0};
  MirrorSender sender("00 9 192.0.2.1", std::chrono::milliseconds(100),
                      [&told](const std::string&) { ++told; });
  for (int i = 0; i < 6000 && told == 0; ++i) {
    // sleeps: polls
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(told, 1);
}

}  // namespace
}  // namespace capstan
