// SPDX-License-Identifier: Apache-2.0
//
// Programs that know nothing of the simulator, by the functions of libc.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "testing/sim/world.h"

namespace capstan::sim {
namespace {

using std::chrono::hours;
using std::chrono::seconds;

std::unique_ptr<World> MakeWorld(int hosts, uint64_t seed = 1) {
  Options options;
  options.seed = seed;
  options.hosts = hosts;
  options.tell = true;
  options.limit = 1000000 * kSecond;
  return std::make_unique<World>(options);
}

void Sleep(unsigned duration) {
  sleep(duration);  // sleeps: in simulated time
}

// Runs `main` alone on one host.
void RunAlone(const std::function<void()>& main) {
  const auto world = MakeWorld(1);
  bool done = false;
  world->Spawn(0, "test", [&] {
    main();
    done = true;
    return 0;
  });
  world->Run();
  EXPECT_TRUE(done);
}

bool Write(const char* path, const std::string& text, bool sync) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const bool written =
      write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (sync) fsync(fd);
  close(fd);
  return written;
}

void SyncFolder(const char* path) {
  const int fd = open(path, O_RDONLY);
  fsync(fd);
  close(fd);
}

// "-" if there is no such file.
std::string Read(const char* path) {
  const int fd = open(path, O_RDONLY);
  if (fd < 0) return "-";
  char text[256];
  const ssize_t n = read(fd, text, sizeof(text));
  close(fd);
  return std::string(text, n < 0 ? 0 : n);
}

sockaddr_in AddressOf(int host, int port) {
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl((10u << 24) + host + 1);
  return address;
}

int ListenAt(int host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = AddressOf(host, port);
  bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  listen(fd, 8);
  return fd;
}

int ConnectTo(int host, int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const sockaddr_in address = AddressOf(host, port);
  const int result =
      connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  return result == 0 ? fd : -errno;
}

TEST(ClockTest, AnHourTakesNoTime) {
  const auto begin = std::chrono::steady_clock::now();
  RunAlone([] {
    const auto before = std::chrono::steady_clock::now();
    std::this_thread::sleep_for(hours(100));  // sleeps: simulated ones
    const auto slept = std::chrono::steady_clock::now() - before;
    EXPECT_GE(slept, hours(100));
    EXPECT_LT(slept, hours(100) + seconds(1));
  });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, hours(1));
}

TEST(ThreadsTest, WaitForEachOther) {
  RunAlone([] {
    std::mutex mutex;
    std::condition_variable changed;
    int turn = 0;
    std::vector<int> order;
    std::vector<std::thread> threads;
    for (int i = 0; i < 5; ++i) {
      threads.emplace_back([&, i] {
        std::unique_lock<std::mutex> lock(mutex);
        changed.wait(lock, [&] { return turn == i; });
        order.push_back(i);
        ++turn;
        changed.notify_all();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(order, (std::vector<int>{0, 1, 2, 3, 4}));
    std::unique_lock<std::mutex> lock(mutex);
    EXPECT_FALSE(changed.wait_for(lock, seconds(5), [&] { return turn == 9; }));
  });
}

TEST(WorldTest, OneSeedOneTrace) {
  const auto trace = [](uint64_t seed) {
    const auto world = MakeWorld(1, seed);
    world->Spawn(0, "test", [] {
      std::vector<std::thread> threads;
      for (int i = 0; i < 4; ++i) threads.emplace_back([] { Sleep(1); });
      for (std::thread& thread : threads) thread.join();
      return 0;
    });
    world->Run();
    return world->trace();
  };
  EXPECT_EQ(trace(1), trace(1));
  EXPECT_NE(trace(1), trace(2));
}

// Plays `before`, cuts the power, and returns what `after` reads then, for each
// of some seeds.
std::vector<std::string> AfterPowerCuts(
    const std::function<void()>& before,
    const std::function<std::string()>& after) {
  std::vector<std::string> found;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const auto world = MakeWorld(1, seed);
    World* const w = world.get();
    std::string read;
    world->Spawn(0, "writer", [&] {
      before();
      w->After(0, [&] {
        w->CrashHost(0);
        w->BootHost(0);
        w->Spawn(0, "reader", [&] {
          read = after();
          return 0;
        });
      });
      Sleep(100);
      return 0;
    });
    world->Run();
    found.push_back(read);
  }
  return found;
}

TEST(DiskTest, LosesWhatIsNotSynced) {
  const auto read = [] { return Read("/file"); };
  int lost = 0;
  const auto unsynced = AfterPowerCuts(
      [] {
        Write("/file", "text", /*sync=*/false);
        SyncFolder("/");
      },
      read);
  for (const std::string& one : unsynced) lost += one != "text";
  EXPECT_GT(lost, 5);
  EXPECT_LT(lost, 40);
  const auto synced = AfterPowerCuts(
      [] {
        Write("/file", "text", /*sync=*/true);
        SyncFolder("/");
      },
      read);
  for (const std::string& one : synced) EXPECT_EQ(one, "text");
}

TEST(DiskTest, ANameIsThereOnceItsFolderIsSynced) {
  int old = 0;
  const auto rename_it = [](bool sync) {
    Write("/old", "1", true);
    Write("/new", "2", true);
    SyncFolder("/");
    rename("/new", "/old");
    if (sync) SyncFolder("/");
  };
  const auto read = [] { return Read("/old") + Read("/new"); };
  for (const auto& one : AfterPowerCuts([&] { rename_it(false); }, read)) {
    // A renaming is done or isn't, never by half.
    EXPECT_TRUE(one == "12" || one == "2-") << one;
    old += one == "12";
  }
  EXPECT_GT(old, 5);
  for (const auto& one : AfterPowerCuts([&] { rename_it(true); }, read)) {
    EXPECT_EQ(one, "2-");
  }
}

TEST(DiskTest, IsFull) {
  RunAlone([] {
    EXPECT_TRUE(Write("/file", "text", false));
    TheWorld()->host(0).disk_full_until = TheWorld()->now() + kSecond;
    const int fd = open("/other", O_WRONLY | O_CREAT, 0644);
    EXPECT_EQ(fd, -1);
    EXPECT_EQ(errno, ENOSPC);
    Sleep(2);
    EXPECT_TRUE(Write("/other", "text", false));
  });
}

TEST(DiskTest, ALockIsFreedByItsHoldersDeath) {
  const auto world = MakeWorld(2);
  World* const w = world.get();
  bool taken = false;
  Process* const holder = world->Spawn(0, "holder", [] {
    const int fd = open("/shared/lock", O_RDWR | O_CREAT, 0644);
    EXPECT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
    Sleep(1000);
    return 0;
  });
  world->Spawn(1, "other", [&] {
    Sleep(1);
    const int fd = open("/shared/lock", O_RDWR | O_CREAT, 0644);
    EXPECT_EQ(flock(fd, LOCK_EX | LOCK_NB), -1);
    EXPECT_EQ(errno, EWOULDBLOCK);
    w->Signal(holder, SIGKILL);
    taken = flock(fd, LOCK_EX | LOCK_NB) == 0;
    return 0;
  });
  world->Run();
  EXPECT_TRUE(taken);
}

// host1 reads from a connection to host0, which `disturb` disturbs; returns
// what read returned, and when.
std::pair<ssize_t, Time> ReadWhile(const std::function<void(World*)>& disturb,
                                   bool keep_alive, bool sends = false) {
  const auto world = MakeWorld(2);
  World* const w = world.get();
  std::pair<ssize_t, Time> result = {-1, 0};
  world->Spawn(0, "server", [=] {
    const int listening = ListenAt(0, 80);
    const int fd = accept(listening, nullptr, nullptr);
    Sleep(2);
    if (sends) {
      EXPECT_EQ(send(fd, "x", 1, 0), 1);
    }
    Sleep(100000);
    return fd;
  });
  world->Spawn(1, "client", [&] {
    Sleep(1);
    const int fd = ConnectTo(0, 80);
    EXPECT_GE(fd, 0);
    const int on = keep_alive ? 1 : 0;
    const int idle = 10;
    const int count = 3;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    disturb(w);
    char byte = 0;
    const ssize_t n = recv(fd, &byte, 1, 0);
    result = {n < 0 ? -errno : n, w->now()};
    w->Stop();
    return 0;
  });
  world->At(50000 * kSecond, [w] { w->Stop(); });
  world->Run();
  return result;
}

TEST(NetworkTest, BytesArriveAfterAPartition) {
  const auto [n, when] =
      ReadWhile([](World* w) { w->Partition(0, 1, w->now() + 60 * kSecond); },
                /*keep_alive=*/false, /*sends=*/true);
  EXPECT_EQ(n, 1);
  EXPECT_GE(when, 60 * kSecond);
  EXPECT_LT(when, 200 * kSecond);
}

TEST(NetworkTest, ADeadProcessEndsItsConnections) {
  const auto [n, when] = ReadWhile(
      [](World* w) { w->Signal(w->Find(100), SIGKILL); }, /*keep_alive=*/false);
  EXPECT_EQ(n, 0);
  EXPECT_LT(when, 2 * kSecond);
}

TEST(NetworkTest, ADeadHostDoesNotUnlessItIsAsked) {
  const auto crash = [](World* w) { w->After(0, [w] { w->CrashHost(0); }); };
  EXPECT_EQ(ReadWhile(crash, /*keep_alive=*/false).second, 0);
  const auto [n, when] = ReadWhile(crash, /*keep_alive=*/true);
  EXPECT_EQ(n, -ETIMEDOUT);
  EXPECT_GE(when, 40 * kSecond);
  EXPECT_LT(when, 60 * kSecond);
}

TEST(NetworkTest, NobodyListens) {
  RunAlone([] { EXPECT_EQ(ConnectTo(0, 81), -ECONNREFUSED); });
}

TEST(ProcessTest, ForksAndWaits) {
  RunAlone([] {
    setenv("WHO", "parent", 1);
    int ends[2];
    ASSERT_EQ(pipe2(ends, 0), 0);
    int local = 1;
    const pid_t child = fork();
    if (child == 0) {
      local = 2;
      setenv("WHO", "child", 1);
      const std::string text = std::to_string(local) + getenv("WHO");
      const ssize_t written = write(ends[1], text.data(), text.size());
      _exit(written > 0 ? 7 : 8);
    }
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), 7);
    char text[16] = {};
    EXPECT_EQ(read(ends[0], text, sizeof(text)), 6);
    EXPECT_STREQ(text, "2child");
    EXPECT_EQ(local, 1);
    EXPECT_STREQ(getenv("WHO"), "parent");
  });
}

int handled = 0;

TEST(ProcessTest, HandlesSignals) {
  handled = 0;
  RunAlone([] {
    struct sigaction action = {};
    action.sa_handler = [](int signal) { handled = signal; };
    sigaction(SIGTERM, &action, nullptr);
    TheWorld()->After(
        kSecond, [process = Mine()] { TheWorld()->Signal(process, SIGTERM); });
    Sleep(100);
    EXPECT_EQ(handled, SIGTERM);
    EXPECT_LT(TheWorld()->now(), 50 * kSecond);
  });
}

TEST(ProcessTest, AStoppedOneWaits) {
  const auto world = MakeWorld(1);
  World* const w = world.get();
  Time end = 0;
  Process* const process = world->Spawn(0, "test", [&] {
    Sleep(1);
    end = w->now();
    return 0;
  });
  world->At(kMillisecond, [=] { w->Signal(process, SIGSTOP); });
  world->At(30 * kSecond, [=] { w->Signal(process, SIGCONT); });
  world->Run();
  EXPECT_GE(end, 30 * kSecond);
}

}  // namespace
}  // namespace capstan::sim
