// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_RANKS_FOR_TEST_H_
#define CAPSTAN_CLUSTER_COMM_RANKS_FOR_TEST_H_

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"

// Runs real ranks on the CPU, for tests of process groups.
namespace capstan {

using RankCheck = std::function<void(ProcessGroup* group)>;

// Runs `ranks` ranks that join over `backend`, "shm" or "gloo", and call
// `check`; returns the exit code.
inline int RunRanks(const std::string& backend, int ranks,
                    const RankCheck& check) {
  return LaunchRanks(ranks, [&](const RankInfo& info) {
    setenv("CAPSTAN_CPU_COLLECTIVES", backend.c_str(), /*replace=*/1);
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                             CreateProcessGroup(info, 0));
    check(group.get());
    return absl::OkStatus();
  });
}

// Runs hosts.size() ranks, of which rank r finds itself on host hosts[r].
inline int RunHosts(const std::vector<int>& hosts, const RankCheck& check) {
  return LaunchRanks(static_cast<int>(hosts.size()), [&](const RankInfo& info) {
    unsetenv("CAPSTAN_CPU_COLLECTIVES");
    setenv("CAPSTAN_HOST_ID", std::to_string(hosts[info.rank]).c_str(),
           /*replace=*/1);
    CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                             CreateProcessGroup(info, 0));
    check(group.get());
    return absl::OkStatus();
  });
}

// A rank that awaits what others tell, without a group. Made before them.
class OthersEnd {
 public:
  OthersEnd() { Must(pipe(ends_) == 0); }
  ~OthersEnd() {
    close(ends_[0]);
    close(ends_[1]);
  }
  OthersEnd(const OthersEnd&) = delete;
  OthersEnd& operator=(const OthersEnd&) = delete;

  void Tell() { Must(write(ends_[1], "", 1) == 1); }
  // Until `count` have told.
  void Await(int count) {
    char byte;
    for (int i = 0; i < count; ++i) Must(read(ends_[0], &byte, 1) == 1);
  }

 private:
  // Of an expectation in a rank nobody would hear.
  static void Must(bool done) {
    if (!done) abort();
  }

  int ends_[2];
};

// Calls `run`, which returns an exit code, and captures standard error in
// `text`.
inline int WithErrors(const std::function<int()>& run, std::string* text) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]);
    close(ends[1]);
    _exit(run());
  }
  close(ends[1]);
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text->append(buffer, got);
  }
  close(ends[0]);
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

inline int RunRanks(const std::string& backend, int ranks,
                    const RankCheck& check, std::string* text) {
  return WithErrors([&] { return RunRanks(backend, ranks, check); }, text);
}

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_RANKS_FOR_TEST_H_
