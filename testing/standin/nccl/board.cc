// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/nccl/board.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <mutex>
#include <random>
#include <set>

#include "testing/standin/nccl/arithmetic.h"

namespace capstan::standin {
namespace {

constexpr char kFolder[] = "/dev/shm/";
constexpr char kPrefix[] = "standin-nccl-";

int64_t RoundUp(int64_t bytes) { return (bytes + 4095) / 4096 * 4096; }

int64_t PartsBytes(int size) {
  return RoundUp(size * static_cast<int64_t>(sizeof(RankPart)));
}

int64_t MailBytes(int size) {
  return RoundUp(static_cast<int64_t>(size) * size * sizeof(Mailbox));
}

int64_t TotalBytes(int size) {
  return PartsBytes(size) + MailBytes(size) + size * kRounds * kRoundBytes;
}

// Files that still have names; removed when the process exits.
class Names {
 public:
  static Names& Get() {
    static Names* const names = [] {
      atexit([] { Get().RemoveAll(); });
      return new Names;
    }();
    return *names;
  }

  void Add(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    names_.insert(name);
  }
  void Remove(const std::string& name) {
    const std::lock_guard<std::mutex> lock(mutex_);
    unlink((kFolder + name).c_str());
    names_.erase(name);
  }
  void RemoveAll() {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const std::string& name : names_) unlink((kFolder + name).c_str());
    names_.clear();
  }

 private:
  std::mutex mutex_;
  std::set<std::string> names_;
};

void RemoveOrphans() {
  DIR* const folder = opendir(kFolder);
  if (folder == nullptr) return;
  while (const dirent* entry = readdir(folder)) {
    int pid = 0;
    char format[sizeof(kPrefix) + 8];
    snprintf(format, sizeof(format), "%s%%d-", kPrefix);
    if (sscanf(entry->d_name, format, &pid) != 1 || pid <= 0) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) {
      unlink((std::string(kFolder) + entry->d_name).c_str());
    }
  }
  closedir(folder);
}

const char* NameOfOp(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return "sum";
    case ncclProd:
      return "product";
    case ncclMax:
      return "maximum";
    case ncclMin:
      return "minimum";
    case ncclAvg:
      return "average";
    default:
      return "scaled sum";
  }
}

bool Reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce ||
         kind == Kind::kReduceScatter;
}

bool HasRoot(Kind kind) {
  return kind == Kind::kReduce || kind == Kind::kBroadcast;
}

}  // namespace

const char* NameOf(Kind kind) {
  switch (kind) {
    case Kind::kAllReduce:
      return "nccl::all_reduce";
    case Kind::kReduce:
      return "nccl::reduce";
    case Kind::kBroadcast:
      return "nccl::broadcast";
    case Kind::kAllGather:
      return "nccl::all_gather";
    case Kind::kReduceScatter:
      return "nccl::reduce_scatter";
    case Kind::kAllToAll:
      return "nccl::all_to_all";
  }
  return "nccl::unknown";
}

std::string Describe(const Call& call) {
  const char* const type = WidthOf(call.type) > 0 ? NameOf(call.type) : "?";
  std::string text = std::string(NameOf(call.kind)) + " of " +
                     std::to_string(call.count) + " " + type;
  if (Reduces(call.kind)) text += std::string(" (") + NameOfOp(call.op) + ")";
  if (HasRoot(call.kind)) text += ", root " + std::to_string(call.root);
  return text;
}

bool operator==(const Call& a, const Call& b) {
  return a.kind == b.kind && a.type == b.type && a.op == b.op &&
         a.root == b.root && a.count == b.count;
}

std::shared_ptr<Board> Board::Open(const std::string& name, int rank, int size,
                                   std::string* error) {
  const std::string path = kFolder + name;
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* memory = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, TotalBytes(size)) == 0) {
    memory = mmap(nullptr, TotalBytes(size), PROT_READ | PROT_WRITE, MAP_SHARED,
                  fd, 0);
  }
  if (memory == MAP_FAILED)
    *error = "can't map " + path + ": " + strerror(errno);
  if (fd >= 0) close(fd);
  if (memory == MAP_FAILED) return nullptr;
  Names::Get().Add(name);
  std::shared_ptr<Board> board(
      new Board(name, rank, size, static_cast<char*>(memory)));
  // A new file is zeros, which is what the counters begin with.
  RankPart& mine = board->mine();
  if (mine.joined.exchange(1) != 0) {
    *error = "rank " + std::to_string(rank) + " joins twice";
    return nullptr;
  }
  mine.pid = getpid();
  return board;
}

Board::Board(std::string name, int rank, int size, char* memory)
    : name_(std::move(name)), rank_(rank), size_(size), memory_(memory) {}

Board::~Board() {
  Names::Get().Remove(name_);
  munmap(memory_, TotalBytes(size_));
}

RankPart& Board::part(int rank) const {
  return reinterpret_cast<RankPart*>(memory_)[rank];
}

Mailbox& Board::mail(int from, int to) const {
  return reinterpret_cast<Mailbox*>(memory_ +
                                    PartsBytes(size_))[from * size_ + to];
}

char* Board::round(int rank, int64_t round) const {
  return memory_ + PartsBytes(size_) + MailBytes(size_) +
         (rank * kRounds + round % kRounds) * kRoundBytes;
}

int64_t Board::Least(std::atomic<int64_t> RankPart::*counter) const {
  int64_t least = (part(0).*counter).load(std::memory_order_acquire);
  for (int r = 1; r < size_; ++r) {
    least = std::min(least, (part(r).*counter).load(std::memory_order_acquire));
  }
  return least;
}

bool Board::AllJoined() const {
  for (int r = 0; r < size_; ++r) {
    if (part(r).joined == 0) return false;
  }
  // All have mapped it: nobody needs the name any more.
  std::call_once(complete_, [this] { Names::Get().Remove(name_); });
  return true;
}

std::string NewBoardName() {
  RemoveOrphans();
  std::random_device random;
  char name[80];
  snprintf(name, sizeof(name), "%s%d-%08x%08x", kPrefix, getpid(), random(),
           random());
  return name;
}

}  // namespace capstan::standin
