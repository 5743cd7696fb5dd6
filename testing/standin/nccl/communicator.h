// SPDX-License-Identifier: Apache-2.0
//
// A rank of a communicator, and its collectives as works of the device.
#ifndef CAPSTAN_TESTING_STANDIN_NCCL_COMMUNICATOR_H_
#define CAPSTAN_TESTING_STANDIN_NCCL_COMMUNICATOR_H_

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "testing/standin/nccl/arithmetic.h"
#include "testing/standin/nccl/board.h"

namespace capstan::standin {

constexpr char kOutOfMemory[] = "Cuda failure 2 'out of memory'";

// A collective's arguments.
struct Arguments {
  Call call;
  Reduction reduction;
  // Where the scale of a PreMulSum is, if it is on the device.
  const void* scale = nullptr;
  const void* input = nullptr;  // null: this rank has none (broadcast)
  void* output = nullptr;       // null: this rank gets none (reduce)
};

struct Message {
  bool send = false;
  void* data = nullptr;
  int64_t count = 0;
  ncclDataType_t type = ncclInt8;
  int peer = 0;
};

// A call as a work of the device: begun by the device's thread when the calls
// before it on this communicator are done, and gone on with whenever that
// thread comes by.
class Operation;

// Thread-safe: hosts' threads issue calls, abort, and ask for errors; the
// device's thread does the work.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  // Joins without waiting for the others. Null and *error if that can't be:
  // "Cuda failure 2 'out of memory'", if there is no memory for its buffers.
  static std::shared_ptr<Communicator> Join(const std::string& board, int rank,
                                            int size, std::string* error);
  // This rank's part of the parent's next split; null if color is negative.
  // Without waiting.
  static std::shared_ptr<Communicator> Split(
      const std::shared_ptr<Communicator>& parent, int color, int key);

  // Goes on with joining. ncclInProgress until all ranks are there.
  ncclResult_t Poll();
  // Polls until that or an abort. For `Board` on paper: at once.
  ncclResult_t AwaitOthers();

  // Both known once Poll has succeeded.
  int rank() const { return rank_; }
  int size() const { return size_; }
  int device() const { return device_; }
  // How often this rank has split it; at most kMostSplits.
  int splits() const { return board_->mine().splits; }

  // Appends to a stream. These also count as calls for `fault=collective:K`.
  ncclResult_t Start(const Arguments& arguments, void* stream);
  // Messages that are under way together.
  ncclResult_t Start(const std::vector<Message>& messages, void* stream);

  // A PreMulSum: its op is ncclNumOps + the returned number.
  int AddScale(Arguments scale);
  // Sets the reduction of a call whose op is one of AddScale's.
  bool FindScale(int number, Arguments* arguments) const;

  // ncclSuccess, ncclInProgress while joining, or what has failed.
  ncclResult_t AsyncError();
  ncclResult_t error() const {
    return static_cast<ncclResult_t>(error_.load());
  }
  // Works end without a result from now on.
  void Abort() { aborted_ = true; }
  // No call follows.
  void Leave();
  // Waits for the device. Not after Abort, as other communicators may hang.
  void FreeBuffers();

 private:
  friend class Operation;

  Communicator();
  // As NCCL has them in the device's memory: of NCCL_BUFFSIZE bytes. Nothing is
  // in them here.
  bool MakeBuffers();
  ncclResult_t Enqueue(const std::shared_ptr<Operation>& operation,
                       void* stream);

  // Set by the thread that joins, before collectives.
  std::shared_ptr<Board> board_;
  int rank_ = 0;
  int size_ = 1;
  int device_ = 0;
  void* buffers_ = nullptr;
  // While this is to be split from it.
  std::shared_ptr<Communicator> parent_;
  int split_ = 0;
  int color_ = 0;

  std::atomic<bool> aborted_{false};
  std::atomic<int> error_{ncclSuccess};
  mutable std::mutex mutex_;
  std::vector<Arguments> scales_;
  int64_t tickets_ = 0;  // given to calls; under mutex_

  // Of the device's thread: the call under way, and the ticket whose turn it is
  // next.
  const Operation* current_ = nullptr;
  int64_t turn_ = 0;
  int64_t round_ = 0;  // the last of all calls begun
};

}  // namespace capstan::standin

#endif  // CAPSTAN_TESTING_STANDIN_NCCL_COMMUNICATOR_H_
