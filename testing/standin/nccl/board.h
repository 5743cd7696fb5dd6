// SPDX-License-Identifier: Apache-2.0
//
// The memory that the ranks of one communicator share: a file in /dev/shm that
// has a name only until all of them have mapped it.
#ifndef CAPSTAN_TESTING_STANDIN_NCCL_BOARD_H_
#define CAPSTAN_TESTING_STANDIN_NCCL_BOARD_H_

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace capstan::standin {

enum class Kind : int {
  kAllReduce = 1,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kAllToAll,
};

// What a rank calls. All ranks must call the same.
struct Call {
  Kind kind = Kind::kAllReduce;
  ncclDataType_t type = ncclFloat32;
  ncclRedOp_t op = ncclSum;  // ncclNumOps: PreMulSum
  int root = 0;
  int64_t count = 0;  // as in the function's call
};

// "nccl::all_reduce"
const char* NameOf(Kind kind);
// "all_reduce of 17 float32 (sum)"
std::string Describe(const Call& call);
bool operator==(const Call& a, const Call& b);

// Bytes of a rank's part of one round of a collective. Two rounds are under way
// at a time.
constexpr int64_t kRoundBytes = int64_t{1} << 20;
constexpr int kRounds = 2;
// Bytes of a message that are on their way from one rank to another.
constexpr int64_t kMailBytes = int64_t{1} << 16;
constexpr int kMostSplits = 64;

// What one rank shows the others. Counters only grow.
struct RankPart {
  std::atomic<int> pid{0};
  std::atomic<int> joined{0};
  std::atomic<int> left{0};        // destroyed or finalized its communicator
  std::atomic<int64_t> failed{0};  // the call that has failed, if any
  // Calls of the host, and those that the device has begun; call n is in
  // calls[n % 2], counted from 1.
  std::atomic<int64_t> issued{0};
  std::atomic<int64_t> posted{0};
  Call calls[2];
  std::atomic<int64_t> written{0}, read{0};  // rounds
  // Its colors and keys of ncclCommSplit.
  std::atomic<int> splits{0};
  int colors[kMostSplits];
  int keys[kMostSplits];
};

// From one rank to another; holds one piece of a message at a time.
struct Mailbox {
  std::atomic<int64_t> written{0}, read{0};  // pieces
  int64_t message_bytes = 0;
  ncclDataType_t type = ncclInt8;
  char data[kMailBytes];
};

class Board {
 public:
  // Maps the file, which any of the ranks makes, and counts as joined. Null and
  // *error if that can't be.
  static std::shared_ptr<Board> Open(const std::string& name, int rank,
                                     int size, std::string* error);
  ~Board();

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& name() const { return name_; }

  RankPart& part(int rank) const;
  RankPart& mine() const { return part(rank_); }
  Mailbox& mail(int from, int to) const;
  // A rank's bytes of a round.
  char* round(int rank, int64_t round) const;

  // The smallest number that any rank has reached.
  int64_t Least(std::atomic<int64_t> RankPart::*counter) const;
  // Whether all ranks are there.
  bool AllJoined() const;

 private:
  Board(std::string name, int rank, int size, char* memory);

  const std::string name_;
  const int rank_;
  const int size_;
  char* const memory_;
  mutable std::once_flag complete_;
};

// A name that no other communicator of this machine has, and fits into an
// ncclUniqueId. Removes what processes that died have left behind.
std::string NewBoardName();

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_NCCL_BOARD_H_
