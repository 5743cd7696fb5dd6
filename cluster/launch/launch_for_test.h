// SPDX-License-Identifier: Apache-2.0
//
// Launchers as processes of their own, for tests.
#ifndef CAPSTAN_CLUSTER_LAUNCH_LAUNCH_FOR_TEST_H_
#define CAPSTAN_CLUSTER_LAUNCH_LAUNCH_FOR_TEST_H_

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "cluster/launch/launcher.h"

namespace capstan {

struct Result {
  int exit_code = -1;
  std::string text;  // standard error
  double seconds = 0;
};

// Runs `program` in a child process and captures its standard error; calls
// `when_ready` with the child's pid each time "ready\n" has appeared `ranks`
// times.
inline Result Capture(const std::function<int()>& program, int ranks = 0,
                      const std::function<void(pid_t)>& when_ready = nullptr) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const auto start = std::chrono::steady_clock::now();
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    // A test that hangs fails.
    alarm(120);
    _exit(program());
  }
  close(ends[1]);
  Result result;
  char buffer[4096];
  bool told = false;
  while (true) {
    const ssize_t got = read(ends[0], buffer, sizeof(buffer));
    if (got <= 0) break;
    result.text.append(buffer, got);
    int ready = 0;
    for (size_t at = 0;
         (at = result.text.find("ready\n", at)) != std::string::npos; ++at) {
      ++ready;
    }
    if (!told && when_ready && ready >= ranks) {
      told = true;
      when_ready(pid);
    }
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  result.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count();
  return result;
}

inline Result Launch(int ranks, const RankMain& rank_main,
                     const std::function<void(pid_t)>& when_ready = nullptr) {
  return Capture([&] { return LaunchRanks(ranks, rank_main); }, ranks,
                 when_ready);
}

// Returns once the process has taken a signal that it was sent: two that wait
// at the same time may come as one, or in another order.
inline void AwaitTaken(pid_t pid, int signal) {
  for (int i = 0; i < 60000; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    uint64_t pending = 0;
    for (std::string line; std::getline(status, line);) {
      if (line.rfind("ShdPnd:", 0) == 0) {
        pending = std::stoull(line.substr(7), nullptr, 16);
      }
    }
    if ((pending >> (signal - 1) & 1) == 0) return;
    usleep(1000);
  }
  ADD_FAILURE() << "process " << pid << " doesn't take signal " << signal;
}

inline void Ready() { fputs("ready\n", stderr); }

inline absl::Status UntilStopped() {
  Ready();
  while (StopRequested() == 0) usleep(1000);
  return absl::CancelledError("stopped after step 3");
}

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_LAUNCH_FOR_TEST_H_
