// SPDX-License-Identifier: Apache-2.0
//
// How long ranks on this machine take to meet, and to tell each other a text,
// which is what a process group does first. The ranks are processes that do
// nothing else. Prints a table, in Markdown; the times are from the moment when
// all may begin to the last one's end.
//
//     bazel run //bench:meeting -- [RANKS,..]
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/launch/network.h"
#include "cluster/meet/rendezvous.h"

namespace capstan {
namespace {

// When a rank had got so far, by the machine's clock.
struct Times {
  double met = 0;
  double exchanged = 0;
};

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe OpenPipe() {
  int ends[2];
  if (pipe(ends) != 0) {
    perror("pipe");
    exit(1);
  }
  return {ends[0], ends[1]};
}

absl::Status MeetAndTell(const RankInfo& info, Times* times) {
  CAPSTAN_ASSIGN_OR_RETURN(const Meeting meeting, Meet(info));
  times->met = MonotonicSeconds();
  try {
    c10d::Store& store = *meeting.store;
    std::vector<std::string> keys;
    for (int rank = 0; rank < info.world_size; ++rank) {
      keys.push_back(absl::StrCat("text/", rank));
    }
    store.set(keys[info.rank], std::string(100, 'x'));
    store.multiGet(keys);
    times->exchanged = MonotonicSeconds();
    // Rank 0 serves, and goes last.
    if (store.add("done", 1) == info.world_size) store.set("all done", "x");
    if (info.rank == 0) store.wait({"all done"});
    MayLeave(meeting);
  } catch (...) {
    return CurrentExceptionToStatus();
  }
  return absl::OkStatus();
}

// The child's part; `gate` is closed when all may begin.
[[noreturn]] void RunRank(const RankInfo& info, const Pipe& gate,
                          const Pipe& results) {
  close(gate.write_end);
  char byte;
  if (read(gate.read_end, &byte, 1) != 0) _exit(1);
  Times times;
  const absl::Status status = MeetAndTell(info, &times);
  if (!status.ok()) {
    fprintf(stderr, "%s\n", status.ToString().c_str());
    _exit(1);
  }
  const bool told = write(results.write_end, &times, sizeof(times)) ==
                    static_cast<ssize_t>(sizeof(times));
  _exit(told ? 0 : 1);
}

RankInfo InfoOf(int rank, int ranks, int port, const std::string& folder) {
  RankInfo info;
  info.rank = rank;
  info.world_size = ranks;
  info.local_rank = rank;
  info.local_world_size = ranks;
  info.run_key = "bench";
  info.token = folder.empty() ? "token" : "";
  info.master_port = port;
  if (!folder.empty()) info.master_addr.clear();
  info.meeting_folder = folder;
  return info;
}

// False if a rank fails. By a file in `folder`, or by a port if that is empty.
bool Measure(int ranks, const std::string& folder) {
  int port = 0;
  if (folder.empty()) {
    SocketAddress address = *SocketAddress::Parse("127.0.0.1", 0);
    if (!ListenAt(&address).ok()) return false;
    port = address.port();
  }
  const Pipe gate = OpenPipe();
  const Pipe results = OpenPipe();
  std::vector<pid_t> children;
  bool good = true;
  for (int rank = 0; rank < ranks && good; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      RunRank(InfoOf(rank, ranks, port, folder), gate, results);
    }
    good = child > 0;
    if (good) children.push_back(child);
  }
  if (!good) {
    perror("fork");
    for (const pid_t child : children) kill(child, SIGKILL);
  }
  close(results.write_end);
  const double begin = MonotonicSeconds();
  close(gate.write_end);
  Times last;
  int came = 0;
  Times times;
  while (read(results.read_end, &times, sizeof(times)) ==
         static_cast<ssize_t>(sizeof(times))) {
    ++came;
    last.met = std::max(last.met, times.met);
    last.exchanged = std::max(last.exchanged, times.exchanged);
  }
  for (const pid_t child : children) {
    int status = 0;
    good = waitpid(child, &status, 0) == child && status == 0 && good;
  }
  close(gate.read_end);
  close(results.read_end);
  if (!good || came != ranks) return false;
  printf("| %d | %s | %.1f | %.1f |\n", ranks, folder.empty() ? "port" : "file",
         1e3 * (last.met - begin), 1e3 * (last.exchanged - last.met));
  fflush(stdout);
  return true;
}

int Main(int argc, char** argv) {
  std::vector<int> ranks = {2, 8, 64, 1024};
  if (argc > 1) {
    ranks.clear();
    for (const absl::string_view part : absl::StrSplit(argv[1], ',')) {
      int number = 0;
      if (argc > 2 || !absl::SimpleAtoi(part, &number) || number < 1) {
        fprintf(stderr, "usage: meeting [RANKS,..]\n");
        return 2;
      }
      ranks.push_back(number);
    }
  }
  char folder[] = "/tmp/capstan_meeting.XXXXXX";
  if (mkdtemp(folder) == nullptr) {
    perror(folder);
    return 1;
  }
  printf("| ranks | by | met, ms | a text each, ms |\n|---|---|---|---|\n");
  fflush(stdout);
  bool good = true;
  for (const int count : ranks) {
    good = good && Measure(count, "") && Measure(count, folder);
  }
  rmdir(folder);
  return good ? 0 : 1;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
