// SPDX-License-Identifier: Apache-2.0
//
// What a run's ranks cost that grows with their number: meeting, watching, a
// step's collectives, mirrors, checkpoints, of 8 to 1,024 ranks on this
// machine, without a model. bench/thousand.py calls this and draws the result.
//
//     bazel run //bench:thousand -- RANKS RANKS_PER_HOST FOLDER
//
// The ranks are processes; RANKS_PER_HOST of them count as on one host
// (CAPSTAN_HOST_ID), and all share the machine's cores: compare seconds of CPU
// rather than of time. The state has a million parameters in all, with AdamW's
// moments. Prints a line of JSON for each phase: seconds until the last rank's
// end, and for the ranks the mean and the most of CPU seconds, of private
// memory, sockets, other open files and threads at its end.
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <fstream>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/create.h"
#include "cluster/launch/network.h"
#include "cluster/launch/rank_info.h"
#include "cluster/watch/ledger.h"
#include "cluster/watch/watchdog.h"
#include "trainer/checkpoint/mirror_link.h"
#include "trainer/checkpoint/save.h"

namespace capstan {
namespace {

constexpr int64_t kParameters = int64_t{1} << 20;
constexpr int kTensors = 8;
constexpr int kSteps = 4;
constexpr int kWatchSeconds = 10;

const char* const kPhases[] = {"meet", "watch",   "step", "mirror",
                               "send", "restore", "save", "load"};
constexpr int kPhaseCount = sizeof(kPhases) / sizeof(kPhases[0]);

// What a rank tells at the end of a phase.
struct Record {
  int phase;
  double end;
  double cpu;  // of the phase, without this
  int64_t private_kib;
  int64_t sockets;
  int64_t files;
  int64_t threads;
};

double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Calls visit(path) for each entry of a folder of /proc.
void ForEntries(const char* folder,
                const std::function<void(const std::string&)>& visit) {
  DIR* const entries = opendir(folder);
  if (entries == nullptr) return;
  while (const dirent* entry = readdir(entries)) {
    if (entry->d_name[0] != '.')
      visit(absl::StrCat(folder, "/", entry->d_name));
  }
  closedir(entries);
}

// `cpu`: at the beginning of the phase.
Record Now(int phase, double cpu) {
  Record record = {};
  record.end = MonotonicSeconds();
  record.cpu = CpuSeconds() - cpu;
  record.phase = phase;
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string line; std::getline(rollup, line);) {
    int64_t kib = 0;
    if (absl::StartsWith(line, "Private_") &&
        sscanf(line.c_str(), "%*s %ld", &kib) == 1) {
      record.private_kib += kib;
    }
  }
  ForEntries("/proc/self/fd", [&](const std::string& path) {
    char target[64] = {};
    if (readlink(path.c_str(), target, sizeof(target) - 1) < 0) return;
    ++(absl::StartsWith(target, "socket:") ? record.sockets : record.files);
  });
  ForEntries("/proc/self/task", [&](const std::string&) { ++record.threads; });
  return record;
}

// A rank's shard of the state.
struct State {
  State(int rank, int ranks) {
    const int64_t mine = kParameters / ranks, each = kParameters / kTensors;
    OptimizerShard shard;
    for (int i = 0; i < kTensors; ++i) {
      ParameterSpec spec;
      spec.name = absl::StrCat("tensor.", i);
      spec.shape = {each};
      specs.push_back(std::move(spec));
      const int64_t begin = std::max(rank * mine, i * each);
      const int64_t end = std::min((rank + 1) * mine, (i + 1) * each);
      if (begin < end) {
        shard.ranges.push_back(
            {i, begin - i * each, end - begin, begin - rank * mine});
      }
    }
    shard.master = at::ones({mine});
    state.push_back({at::ones({mine}), at::ones({mine})});
    shards.push_back(std::move(shard));
  }

  CheckpointParts Parts(ProcessGroup* group) {
    CheckpointParts parts;
    parts.specs = &specs;
    parts.shards = absl::MakeSpan(shards);
    parts.state = &state;
    parts.state_shapes = {{{"exp_avg"}, {}}, {{"exp_avg_sq"}, {}}};
    parts.owned = {{0, 0, shards[0].master.numel()}};
    parts.group = group;
    return parts;
  }

  std::vector<ParameterSpec> specs;
  std::vector<OptimizerShard> shards;
  std::vector<std::vector<at::Tensor>> state;
};

TrainState AtStep(int64_t step) {
  TrainState state;
  state.step = step;
  return state;
}

class Rank {
 public:
  Rank(const RankInfo& info, std::string folder)
      : info_(info),
        folder_(std::move(folder)),
        state_(info.rank, info.world_size) {}

  absl::Status Run(int phase) {
    using Function = absl::Status (Rank::*)();
    static constexpr Function kFunctions[] = {
        &Rank::Meet, &Rank::Watch,   &Rank::Step, &Rank::StartMirror,
        &Rank::Send, &Rank::Restore, &Rank::Save, &Rank::Load};
    return CatchAll([&] { return (this->*kFunctions[phase])(); });
  }

 private:
  absl::Status Meet() {
    WantLedgers();
    CAPSTAN_ASSIGN_OR_RETURN(group_, CreateProcessGroup(info_, /*gpus=*/0));
    return absl::OkStatus();
  }

  // What watching costs while nothing happens.
  absl::Status Watch() {
    CAPSTAN_ASSIGN_OR_RETURN(watchdog_, Watchdog::Start({}));
    std::this_thread::sleep_for(std::chrono::seconds(kWatchSeconds));
    return absl::OkStatus();
  }

  // As a strategy that shards everything calls them, and the loop's own.
  absl::Status Step() {
    constexpr int64_t kLayer = kParameters / 16;
    const at::Tensor whole = at::ones({kLayer});
    const at::Tensor part = at::empty({kLayer / info_.world_size});
    for (int step = 0; step < kSteps; ++step) {
      group_->AllGather(whole, part)->Wait();
      group_->ReduceScatter(part, whole)->Wait();
      double sums[8] = {};
      group_->AllReduceHost(absl::MakeSpan(sums));
      CAPSTAN_RETURN_IF_ERROR(AnyRank(*group_, false).status());
    }
    return absl::OkStatus();
  }

  absl::Status StartMirror() {
    for (int i = 0; i < kOwn + kHeld; ++i) {
      files_.push_back(memfd_create("mirror", MFD_CLOEXEC));
    }
    MirrorServer::Options options;
    options.host = "127.0.0.1";
    options.files = files_;
    options.held = kHeld;
    options.most_connections = 2 * group_->size() + 16;
    CAPSTAN_ASSIGN_OR_RETURN(server_, MirrorServer::Start(options));
    addresses_ = FromAllRanks(*group_, server_->address());
    mirror_ = std::make_unique<Mirror>(
        std::vector<int>(files_.begin(), files_.begin() + kOwn), 0,
        absl::nullopt, /*peers=*/true);
    const CheckpointParts parts = state_.Parts(group_.get());
    CAPSTAN_RETURN_IF_ERROR(mirror_->Allocate(parts));
    for (int i = 0; i < kHeld; ++i) {
      CAPSTAN_RETURN_IF_ERROR(
          AllocateMirror(files_[kOwn + i], mirror_->ImageBytes(parts)));
    }
    server_->TakeIn(absl::nullopt);
    const int next = (info_.rank + info_.local_world_size) % info_.world_size;
    sender_ = std::make_unique<MirrorSender>(addresses_[next],
                                             std::chrono::seconds(10), nullptr);
    return absl::OkStatus();
  }

  absl::Status Send() {
    const CheckpointParts parts = state_.Parts(group_.get());
    for (int64_t step = 1; step <= kSteps; ++step) {
      CAPSTAN_ASSIGN_OR_RETURN(const Mirror::Copied image,
                               mirror_->Copy(AtStep(step), parts));
      mirror_->Sending();
      sender_->Send(image);
      while (!sender_->through()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      mirror_->PeersHave();
    }
    return absl::OkStatus();
  }

  // As after a death: each rank has its own images.
  absl::Status Restore() {
    std::vector<MirrorImage> mine;
    for (const int file : files_) {
      mine.push_back(MirrorImageIn(file).value_or(MirrorImage()));
    }
    const std::vector<MirrorImage> all = AllGatherHost(*group_, mine);
    std::vector<FoundMirror> found;
    for (int holder = 0; holder < group_->size(); ++holder) {
      const auto connection =
          std::make_shared<MirrorConnection>(addresses_[holder]);
      for (size_t i = 0; i < files_.size(); ++i) {
        FoundMirror one;
        one.image = all[holder * files_.size() + i];
        if (one.image.key.restart < 0) continue;
        const int file = static_cast<int>(i);
        one.read =
            holder == info_.rank
                ? ReadMirrorIn(files_[i])
                : [connection, file](int64_t offset, int64_t bytes, char* out) {
                    return connection->Read(file, offset, bytes, out);
                  };
        one.here = holder == info_.rank;
        found.push_back(std::move(one));
      }
    }
    const absl::optional<MirroredStep> step = NewestMirroredStep(found);
    if (!step.has_value()) return absl::InternalError("there is no mirror");
    return LoadMirroredStep(*step, state_.Parts(group_.get())).status();
  }

  absl::Status Save() {
    return SaveCheckpoint({folder_, AtStep(1), /*keep=*/1},
                          state_.Parts(group_.get()));
  }

  absl::Status Load() {
    return LoadCheckpoint(CheckpointFolder(folder_, 1),
                          state_.Parts(group_.get()))
        .status();
  }

  static constexpr int kOwn = RankInfo::kOwnMirrorFilesOfHosts;
  static constexpr int kHeld = RankInfo::kHeldMirrorFiles;

  const RankInfo info_;
  const std::string folder_;
  State state_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<Watchdog> watchdog_;
  std::vector<int> files_;
  std::unique_ptr<MirrorServer> server_;
  std::vector<std::string> addresses_;
  std::unique_ptr<Mirror> mirror_;
  std::unique_ptr<MirrorSender> sender_;
};

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

Pipe OpenPipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    perror("pipe");
    exit(1);
  }
  return {ends[0], ends[1]};
}

// A child's part; the gate of each phase is closed when all may begin it.
[[noreturn]] void RunRank(const RankInfo& info, const std::string& folder,
                          const std::vector<Pipe>& gates, int results) {
  for (const Pipe& gate : gates) close(gate.write_end);
  setenv("CAPSTAN_HOST_ID",
         absl::StrCat(info.rank / info.local_world_size).c_str(), 1);
  at::set_num_threads(1);
  Rank rank(info, folder);
  for (int phase = 0; phase <= kPhaseCount; ++phase) {
    char byte;
    if (read(gates[phase].read_end, &byte, 1) != 0) _exit(1);
    if (phase == kPhaseCount) _exit(0);
    const double cpu = CpuSeconds();
    const absl::Status status = rank.Run(phase);
    if (!status.ok()) {
      fprintf(stderr, "rank %d: %s: %s\n", info.rank, kPhases[phase],
              status.ToString().c_str());
      _exit(1);
    }
    const Record record = Now(phase, cpu);
    if (write(results, &record, sizeof(record)) != sizeof(record)) _exit(1);
  }
  _exit(0);
}

void Print(int phase, double begin, const std::vector<Record>& records) {
  double last = begin;
  for (const Record& record : records) last = std::max(last, record.end);
  printf("{\"ranks\": %zu, \"phase\": \"%s\", \"seconds\": %.4f",
         records.size(), kPhases[phase], last - begin);
  const auto print = [&](const char* name, auto value) {
    double sum = 0.0, most = 0.0;
    for (size_t i = 0; i < records.size(); ++i) {
      sum += value(i);
      most = std::max<double>(most, value(i));
    }
    printf(", \"%s\": [%.6g, %.6g]", name, sum / records.size(), most);
  };
  print("cpu", [&](size_t i) { return records[i].cpu; });
  print("private_kib", [&](size_t i) { return records[i].private_kib; });
  print("sockets", [&](size_t i) { return records[i].sockets; });
  print("files", [&](size_t i) { return records[i].files; });
  print("threads", [&](size_t i) { return records[i].threads; });
  printf("}\n");
  fflush(stdout);
}

// Lets the children through the gates. False if one fails.
bool Measure(int ranks, const std::vector<Pipe>& gates,
             const std::vector<int>& results) {
  for (int phase = 0; phase < kPhaseCount; ++phase) {
    const double begin = MonotonicSeconds();
    close(gates[phase].write_end);
    std::vector<Record> records(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      Record& record = records[rank];
      if (read(results[rank], &record, sizeof(record)) != sizeof(record) ||
          record.phase != phase) {
        return false;
      }
    }
    Print(phase, begin, records);
  }
  close(gates[kPhaseCount].write_end);
  return true;
}

RankInfo InfoOf(int rank, int ranks, int per_host, int port) {
  RankInfo info;
  info.rank = rank;
  info.world_size = ranks;
  info.local_rank = rank % per_host;
  info.local_world_size = per_host;
  info.run_key = "bench";
  info.token = "token";
  info.master_port = port;
  return info;
}

bool Bench(int ranks, int per_host, const std::string& folder) {
  SocketAddress address = *SocketAddress::Parse("127.0.0.1", 0);
  if (!ListenAt(&address).ok()) return false;
  std::vector<Pipe> gates;
  for (int i = 0; i <= kPhaseCount; ++i) gates.push_back(OpenPipe());
  std::vector<pid_t> children;
  std::vector<int> results;
  bool good = true;
  for (int rank = 0; rank < ranks && good; ++rank) {
    const Pipe result = OpenPipe();
    const pid_t child = fork();
    if (child == 0) {
      for (const int other : results) close(other);
      close(result.read_end);
      RunRank(InfoOf(rank, ranks, per_host, address.port()), folder, gates,
              result.write_end);
    }
    close(result.write_end);
    results.push_back(result.read_end);
    good = child > 0;
    if (good) children.push_back(child);
  }
  good = good && Measure(ranks, gates, results);
  for (const pid_t child : children) {
    if (!good) kill(child, SIGKILL);
    int status = 0;
    good = waitpid(child, &status, 0) == child && status == 0 && good;
  }
  return good;
}

int Main(int argc, char** argv) {
  int ranks = 0, per_host = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[1], &ranks) ||
      !absl::SimpleAtoi(argv[2], &per_host) || per_host < 1 || ranks < 1 ||
      ranks % per_host != 0 || kParameters % ranks != 0) {
    fprintf(stderr, "usage: thousand RANKS RANKS_PER_HOST FOLDER\n");
    return 2;
  }
  AllowOpenFiles(std::numeric_limits<int>::max());
  return Bench(ranks, per_host, argv[3]) ? 0 : 1;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
