// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/nccl/communicator.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <thread>
#include <utility>

#include "testing/standin/device.h"
#include "testing/standin/nccl/operation.h"

namespace capstan::standin {
namespace {

// Whether this is the call that the setting `fault` asks for, "stall:K": the
// K-th of this process; of the communicators' rank `fault_rank`, if that is
// set.
bool IsFaultOf(const char* kind, int rank) {
  if (!IsFault(kind)) return false;
  const std::string of_rank = Setting("fault_rank", "");
  return of_rank.empty() || of_rank == std::to_string(rank);
}

Fault FaultOf(int rank) {
  if (IsFaultOf("collective", rank)) return Fault::kFails;
  if (!IsFaultOf("stall", rank)) return Fault::kNone;
  ReportFault("stall");
  return Fault::kStalls;
}

// What NCCL says once with NCCL_DEBUG=INFO of the network that it takes: the
// setting `network`, "IB" or "Socket".
void TellNetwork() {
  const char* const path = getenv("NCCL_DEBUG_FILE");
  if (getenv("NCCL_DEBUG") == nullptr || path == nullptr) return;
  static std::once_flag once;
  std::call_once(once, [path] {
    const std::string network = Setting("network", "Socket");
    const char* const device =
        network == "IB" ? "mlx5_0:1/IB [RO]; OOB eth0" : "eth0";
    std::ofstream(path) << "a:1:1 [0] NCCL INFO NET/" << network
                        << " : Using [0]" << device << ":10.0.0.1<0>\n"
                        << "a:1:1 [0] NCCL INFO Using network " << network
                        << "\n";
  });
}

bool IsCapturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  return cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status) ==
             cudaSuccess &&
         status != cudaStreamCaptureStatusNone;
}

}  // namespace

Communicator::Communicator() { cudaGetDevice(&device_); }

void Communicator::FreeBuffers() {
  cudaFree(buffers_);
  buffers_ = nullptr;
}

bool Communicator::MakeBuffers() {
  constexpr int kChannels = 4;
  constexpr int64_t kDefault = int64_t{4} << 20;
  const char* const variable = getenv("NCCL_BUFFSIZE");
  const int64_t bytes = variable == nullptr ? kDefault : atoll(variable);
  if (cudaMalloc(&buffers_, kChannels * bytes) == cudaSuccess) return true;
  // Told by the result, not found by the next call.
  (void)cudaGetLastError();
  buffers_ = nullptr;
  return false;
}

std::shared_ptr<Communicator> Communicator::Join(const std::string& board,
                                                 int rank, int size,
                                                 std::string* error) {
  std::shared_ptr<Communicator> made(new Communicator);
  made->rank_ = rank;
  made->size_ = size;
  if (!made->MakeBuffers()) {
    *error = kOutOfMemory;
    return nullptr;
  }
  TellNetwork();
  made->board_ = Board::Open(board, rank, size, error);
  return made->board_ == nullptr ? nullptr : made;
}

std::shared_ptr<Communicator> Communicator::Split(
    const std::shared_ptr<Communicator>& parent, int color, int key) {
  RankPart& mine = parent->board_->mine();
  const int split = mine.splits;
  mine.colors[split] = color;
  mine.keys[split] = key;
  mine.splits.store(split + 1, std::memory_order_release);
  if (color < 0) return nullptr;
  std::shared_ptr<Communicator> made(new Communicator);
  made->parent_ = parent;
  made->split_ = split;
  made->color_ = color;
  return made;
}

ncclResult_t Communicator::Poll() {
  if (error_ != ncclSuccess) return static_cast<ncclResult_t>(error_.load());
  const std::lock_guard<std::mutex> lock(mutex_);
  if (board_ == nullptr) {
    const Board& from = *parent_->board_;
    std::vector<std::pair<int, int>> members;  // key, rank
    for (int r = 0; r < from.size(); ++r) {
      const RankPart& part = from.part(r);
      if (!OnPaper() && part.splits.load(std::memory_order_acquire) <= split_) {
        return ncclInProgress;
      }
      // On paper all are taken to do as this one.
      if (OnPaper()) {
        members.emplace_back(0, r);
      } else if (part.colors[split_] == color_) {
        members.emplace_back(part.keys[split_], r);
      }
    }
    std::sort(members.begin(), members.end());
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i].second == from.rank()) rank_ = static_cast<int>(i);
    }
    size_ = static_cast<int>(members.size());
    if (!MakeBuffers()) {
      error_ = ncclUnhandledCudaError;
      return ncclUnhandledCudaError;
    }
    std::string error;
    board_ = Board::Open(from.name() + "-" + std::to_string(split_) + "." +
                             std::to_string(color_),
                         rank_, size_, &error);
    if (board_ == nullptr) {
      error_ = ncclSystemError;
      return ncclSystemError;
    }
  }
  return OnPaper() || board_->AllJoined() ? ncclSuccess : ncclInProgress;
}

ncclResult_t Communicator::AwaitOthers() {
  for (;;) {
    const ncclResult_t result = Poll();
    if (result != ncclInProgress || aborted_) return result;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

ncclResult_t Communicator::AsyncError() {
  if (error_ != ncclSuccess) return static_cast<ncclResult_t>(error_.load());
  return aborted_ ? ncclSuccess : Poll();
}

void Communicator::Leave() {
  if (board_ != nullptr) board_->mine().left = 1;
}

ncclResult_t Communicator::Start(const Arguments& arguments, void* stream) {
  if (IsFaultOf("skip", rank_)) {
    ReportFault("skip");
    return ncclSuccess;
  }
  const Fault fault = FaultOf(rank_);
  if (!IsCapturing(stream)) ++board_->mine().issued;
  return Enqueue(
      std::make_shared<Collective>(shared_from_this(), fault, arguments),
      stream);
}

ncclResult_t Communicator::Start(const std::vector<Message>& messages,
                                 void* stream) {
  return Enqueue(
      std::make_shared<Messages>(shared_from_this(), FaultOf(rank_), messages),
      stream);
}

ncclResult_t Communicator::Enqueue(const std::shared_ptr<Operation>& operation,
                                   void* stream) {
  Work work;
  work.name = operation->name();
  work.cost.launches = 0;
  work.cost.ranks = size_;
  operation->Describe(&work);
  if (!IsCapturing(stream)) {
    const std::lock_guard<std::mutex> lock(mutex_);
    operation->set_ticket(tickets_++);
  }
  work.run = [operation] { return operation->Run(); };
  return standin::Enqueue(stream, std::move(work)) == cudaSuccess
             ? ncclSuccess
             : ncclUnhandledCudaError;
}

int Communicator::AddScale(Arguments scale) {
  const std::lock_guard<std::mutex> lock(mutex_);
  scales_.push_back(std::move(scale));
  return static_cast<int>(scales_.size()) - 1;
}

bool Communicator::FindScale(int number, Arguments* arguments) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (number < 0 || number >= static_cast<int>(scales_.size())) return false;
  arguments->reduction = scales_[number].reduction;
  arguments->scale = scales_[number].scale;
  return scales_[number].call.type == arguments->call.type;
}

}  // namespace capstan::standin
