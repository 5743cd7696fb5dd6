// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/async_group.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/shm/shm_sum.h"
#include "cluster/comm/single_group.h"

namespace capstan {

// A FIFO of tasks. After one has failed the rest don't run and get its error.
class AsyncQueue {
 public:
  using Task = std::function<absl::Status()>;

  // Returns the task's number for Wait.
  int64_t Put(Task task);
  // Runs the task on this thread if the queue is idle, else waits for its turn.
  absl::Status RunNow(const Task& task);
  // Blocks until task `number` has run and been destroyed, or an earlier one
  // failed.
  absl::Status Wait(int64_t number);

  // Runs tasks until Stop; call on a dedicated thread.
  void Work();
  // Drops tasks that have not begun.
  void Stop();

  // Drops tasks that have not begun and waits for one that has.
  void Quiesce();
  // After Quiesce: Put, RunNow and Wait do nothing and succeed.
  void Pretend();
  // After Quiesce: as new; the tasks so far count as done. Returns how many
  // have not been run.
  int64_t Restart();

 private:
  std::mutex mutex_;
  std::condition_variable put_;
  std::condition_variable done_;
  std::deque<Task> tasks_;
  int64_t put_count_ = 0;
  int64_t done_count_ = 0;
  int64_t dropped_ = 0;
  bool running_ = false;
  bool pretends_ = false;
  bool stopped_ = false;
  absl::Status status_;
};

int64_t AsyncQueue::Put(Task task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) {
    tasks_.push_back(std::move(task));
    put_.notify_one();
  } else {
    ++dropped_;
  }
  return ++put_count_;
}

absl::Status AsyncQueue::RunNow(const Task& task) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!status_.ok()) {
      ++dropped_;
      return pretends_ ? absl::OkStatus() : status_;
    }
    if (put_count_ != done_count_) {
      lock.unlock();
      return Wait(Put(task));
    }
    // Put's only caller is this thread: the worker stays idle meanwhile.
    ++put_count_;
  }
  const absl::Status status = task();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok()) ++done_count_;
  status_.Update(status);
  return status;
}

absl::Status AsyncQueue::Wait(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return done_count_ >= number || !status_.ok(); });
  return done_count_ >= number || pretends_ ? absl::OkStatus() : status_;
}

void AsyncQueue::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    put_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    running_ = true;
    lock.unlock();
    const absl::Status status = task();
    // Release its captures before Wait returns.
    task = nullptr;
    lock.lock();
    running_ = false;
    if (status.ok()) {
      ++done_count_;
    } else {
      status_.Update(status);
      dropped_ += static_cast<int64_t>(tasks_.size());
      tasks_.clear();
    }
    done_.notify_all();
  }
}

void AsyncQueue::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  status_.Update(absl::CancelledError("the process group is closed"));
  tasks_.clear();
  put_.notify_all();
  done_.notify_all();
}

void AsyncQueue::Quiesce() {
  std::unique_lock<std::mutex> lock(mutex_);
  status_.Update(absl::AbortedError("its phase has ended"));
  dropped_ += static_cast<int64_t>(tasks_.size());
  tasks_.clear();
  done_.wait(lock, [&] { return !running_; });
}

void AsyncQueue::Pretend() {
  const std::lock_guard<std::mutex> lock(mutex_);
  pretends_ = true;
}

int64_t AsyncQueue::Restart() {
  const std::lock_guard<std::mutex> lock(mutex_);
  status_ = absl::OkStatus();
  pretends_ = false;
  done_count_ = put_count_;
  return std::exchange(dropped_, 0);
}

namespace {

using Clock = std::chrono::steady_clock;

// INTERNAL: ranks that call different collectives are a bug, not a loss.
[[noreturn]] void Throw(const absl::Status& status) {
  const std::string message(status.message());
  if (absl::IsInternal(status)) throw std::logic_error(message);
  throw CommunicationError(message);
}

class QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<AsyncQueue> queue, int64_t number,
             std::shared_ptr<CommunicationMeter> meter)
      : queue_(std::move(queue)), number_(number), meter_(std::move(meter)) {}

  void Wait() override {
    const Clock::time_point begin = Clock::now();
    const absl::Status status = queue_->Wait(number_);
    meter_->Waited(Clock::now() - begin);
    if (!status.ok()) Throw(status);
  }

 private:
  const std::shared_ptr<AsyncQueue> queue_;
  const int64_t number_;
  const std::shared_ptr<CommunicationMeter> meter_;
};

// `status` of `collective`, worded as in the other process groups.
absl::Status Describe(const absl::Status& status, int rank,
                      const char* collective) {
  if (status.ok()) return status;
  // Names the ranks already.
  if (absl::IsInternal(status)) return status;
  if (absl::IsAborted(status)) {
    return LostPeerError(absl::StrCat("rank ", rank, " ended its ", collective,
                                      ": ", status.message()));
  }
  const bool timed_out = absl::IsDeadlineExceeded(status);
  return MarkLostPeer(absl::Status(
      status.code(),
      absl::StrCat("rank ", rank,
                   timed_out ? " waited too long for another rank during "
                             : " lost the connection to another rank during ",
                   collective, ": ", status.message())));
}

void CheckTensor(const at::Tensor& tensor) {
  CHECK(tensor.device().is_cpu())
      << "collectives need tensors on cpu, not " << tensor.device().str();
  CHECK(tensor.is_contiguous()) << "collectives need contiguous tensors";
}

c10::ScalarType CheckedType(const at::Tensor& tensor) {
  const c10::ScalarType type = tensor.scalar_type();
  CHECK(SumOf(type) != nullptr)
      << "can't sum tensors of " << at::toString(type);
  return type;
}

char* Data(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

}  // namespace

AsyncGroup::AsyncGroup(std::unique_ptr<SyncCollectives> collectives,
                       std::string name,
                       std::shared_ptr<CommunicationMeter> meter,
                       AsyncGroup* parent)
    : collectives_(std::move(collectives)),
      name_(std::move(name)),
      meter_(std::move(meter)),
      queue_(std::make_shared<AsyncQueue>()),
      root_(parent == nullptr ? this : parent->root_),
      worker_([queue = queue_] { queue->Work(); }) {
  root_->family_.push_back(this);
  if (!is_root()) meeting()->Follow(root_->meeting());
}

AsyncGroup::~AsyncGroup() {
  std::vector<AsyncGroup*>& family = root_->family_;
  family.erase(std::find(family.begin(), family.end(), this));
  queue_->Stop();
  collectives_->Stop();
  worker_.join();
}

void AsyncGroup::FailPhase(const std::string& why) {
  const PhaseFailure failure = {phase_, rank(), why};
  collectives_->TellHosts(failure);
  meeting()->Fail(failure);
  for (AsyncGroup* const group : family_) group->meeting()->Ring();
}

bool AsyncGroup::PhaseFailed() const {
  const absl::optional<PhaseFailure> failure = meeting()->Failure();
  return failure.has_value() && failure->phase <= phase_;
}

void AsyncGroup::StopCommunicating() {
  for (AsyncGroup* const group : family_) {
    group->queue_->Quiesce();
    group->queue_->Pretend();
  }
}

absl::StatusOr<int> AsyncGroup::EndPhase(const absl::Status& mine,
                                         const std::string& what) {
  return EndPhase("agreement", mine, what);
}

absl::StatusOr<int> AsyncGroup::EndPhase(const char* barrier,
                                         const absl::Status& mine,
                                         const std::string& what) {
  CHECK(is_root());
  absl::Status status = mine;
  if (mine.ok()) {
    status = RunNow(barrier, 0, 0, [this] { return collectives_->Barrier(); });
  } else if (!IsLostPeer(mine) || !PhaseFailed()) {
    // Also for another rank's failure in an earlier phase.
    FailPhase(absl::StrCat("rank ", name_of(rank()), " could not ", what, ": ",
                           mine.message()));
  }
  const absl::optional<PhaseFailure> failure = meeting()->Failure();
  const uint64_t phase = phase_++;
  // If so, all ranks have arrived here without a failure in this phase.
  if (status.ok() || (failure.has_value() && failure->phase > phase)) return -1;
  if (!failure.has_value()) return status;
  return Recover();
}

absl::StatusOr<int> AsyncGroup::Recover() {
  for (AsyncGroup* const group : family_) group->queue_->Quiesce();
  for (AsyncGroup* const group : family_) group->collectives_->Disconnect();
  const std::string why = meeting()->Failure()->why;
  const auto lost = [&why](const absl::Status& status) {
    return status.ok()
               ? status
               : LostPeerError(absl::StrCat(why, "; then ", status.message()));
  };
  CAPSTAN_RETURN_IF_ERROR(lost(meeting()->Arrive()));
  const int failed = meeting()->Failure()->rank;
  CAPSTAN_RETURN_IF_ERROR(lost(meeting()->Realign()));
  for (AsyncGroup* const group : family_) group->collectives_->Reset();
  CAPSTAN_RETURN_IF_ERROR(lost(meeting()->Realign()));
  for (AsyncGroup* const group : family_) {
    for (int64_t i = group->queue_->Restart(); i > 0; --i) {
      group->meter_->Finished();
    }
  }
  return failed;
}

PhaseGroup* PhaseGroupOf(ProcessGroup& group) {
  if (auto* const around = dynamic_cast<GroupAround*>(&group)) {
    return PhaseGroupOf(around->inner());
  }
  auto* const async = dynamic_cast<AsyncGroup*>(&group);
  return async != nullptr && async->is_root() ? async : nullptr;
}

AsyncGroup::Task AsyncGroup::Prepare(const char* collective, int64_t bytes,
                                     int64_t bytes_sent, Task run) {
  meter_->Sent(bytes_sent);
  meter_->Started();
  const uint64_t number = log_.Issued(collective, bytes);
  return [this, collective, number, run = std::move(run)] {
    log_.Started(number);
    const absl::Status status = Describe(run(), name_of(rank()), collective);
    log_.Finished(number);
    meter_->Finished();
    // Tell the others at once, unless the group may be used again.
    if (!status.ok() && !absl::IsInternal(status) &&
        !root_->meeting()->Failure().has_value()) {
      collectives_->Leave();
    }
    return status;
  };
}

std::unique_ptr<Work> AsyncGroup::Begin(const char* collective, int64_t bytes,
                                        int64_t bytes_sent, Task run) {
  return std::make_unique<QueuedWork>(
      queue_,
      queue_->Put(Prepare(collective, bytes, bytes_sent, std::move(run))),
      meter_);
}

absl::Status AsyncGroup::RunNow(const char* collective, int64_t bytes,
                                int64_t bytes_sent, Task run) {
  const Clock::time_point begin = Clock::now();
  const absl::Status status =
      queue_->RunNow(Prepare(collective, bytes, bytes_sent, std::move(run)));
  meter_->Waited(Clock::now() - begin);
  return status;
}

std::unique_ptr<Work> AsyncGroup::AllReduce(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (tensor.numel() == 0) return NothingToWaitFor();
  return Begin("all-reduce", tensor.nbytes(), 2 * RingBytes(tensor.nbytes()),
               [this, tensor, type = CheckedType(tensor)] {
                 return collectives_->AllReduce(Data(tensor), tensor.numel(),
                                                type);
               });
}

std::unique_ptr<Work> AsyncGroup::ReduceScatter(const at::Tensor& output,
                                                const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(input.numel(), output.numel() * size());
  CHECK(output.scalar_type() == input.scalar_type());
  if (input.numel() == 0) return NothingToWaitFor();
  return Begin("reduce-scatter", input.nbytes(), RingBytes(input.nbytes()),
               [this, output, input, type = CheckedType(input)] {
                 return collectives_->ReduceScatter(Data(output), Data(input),
                                                    output.numel(), type);
               });
}

std::unique_ptr<Work> AsyncGroup::AllGather(const at::Tensor& output,
                                            const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.numel(), input.numel() * size());
  CHECK(output.scalar_type() == input.scalar_type());
  if (output.numel() == 0) return NothingToWaitFor();
  return Begin("all-gather", output.nbytes(), RingBytes(output.nbytes()),
               [this, output, input] {
                 return collectives_->AllGather(Data(output), Data(input),
                                                input.nbytes());
               });
}

std::unique_ptr<Work> AsyncGroup::Broadcast(const at::Tensor& tensor,
                                            int root) {
  CheckTensor(tensor);
  CHECK_LT(root, size());
  if (tensor.numel() == 0) return NothingToWaitFor();
  return Begin("broadcast", tensor.nbytes(),
               rank() == root ? tensor.nbytes() : 0, [this, tensor, root] {
                 return collectives_->Broadcast(Data(tensor), tensor.nbytes(),
                                                root);
               });
}

std::unique_ptr<Work> AsyncGroup::AllToAll(const at::Tensor& output,
                                           const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.nbytes(), input.nbytes());
  CHECK_EQ(input.numel() % size(), 0);
  if (input.numel() == 0) return NothingToWaitFor();
  return Begin("all-to-all", input.nbytes(), RingBytes(input.nbytes()),
               [this, output, input] {
                 return collectives_->AllToAll(Data(output), Data(input),
                                               input.nbytes() / size());
               });
}

std::unique_ptr<Work> AsyncGroup::SendRecv(const at::Tensor& output, int from,
                                           const at::Tensor& input, int to) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.nbytes(), input.nbytes());
  CHECK_LT(std::max(from, to), size());
  if (input.numel() == 0) return NothingToWaitFor();
  return Begin("send-recv", input.nbytes(), to < 0 ? 0 : input.nbytes(),
               [this, output, from, input, to] {
                 return collectives_->SendRecv(Data(output), from, Data(input),
                                               to, input.nbytes());
               });
}

void AsyncGroup::AllReduceHost(absl::Span<double> values) {
  if (values.empty()) return;
  const int64_t bytes = static_cast<int64_t>(values.size()) * sizeof(double);
  const absl::Status status =
      RunNow("all-reduce", bytes, 2 * RingBytes(bytes), [this, values] {
        return collectives_->AllReduce(reinterpret_cast<char*>(values.data()),
                                       static_cast<int64_t>(values.size()),
                                       c10::ScalarType::Double);
      });
  if (!status.ok()) Throw(status);
}

absl::Status AsyncGroup::Start() {
  constexpr char kStart[] = "start";
  // The creation of the whole group is a phase of its own: otherwise a rank
  // that fails right after it would end it on slower ranks.
  if (is_root()) return EndPhase(kStart, absl::OkStatus(), kStart).status();
  return RunNow(kStart, 0, 0, [this] { return collectives_->Barrier(); });
}

absl::StatusOr<std::vector<std::string>> AsyncGroup::ExchangeTexts(
    const std::string& mine) {
  CHECK_LT(mine.size(), kTextBytes);
  std::vector<char> input(kTextBytes);
  std::copy(mine.begin(), mine.end(), input.begin());
  std::vector<char> output(kTextBytes * size());
  CAPSTAN_RETURN_IF_ERROR(RunNow(
      "split", kTextBytes * size(), RingBytes(output.size()),
      [this, &input, &output] {
        return collectives_->AllGather(output.data(), input.data(), kTextBytes);
      }));
  std::vector<std::string> texts;
  for (int i = 0; i < size(); ++i) {
    texts.emplace_back(output.data() + i * kTextBytes);
  }
  return texts;
}

absl::StatusOr<std::vector<int>> AsyncGroup::RanksOfColor(int color) {
  CHECK_GE(color, 0);
  const std::string mine = absl::StrCat(color);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> colors,
                           ExchangeTexts(mine));
  std::vector<int> ranks;
  for (int i = 0; i < size(); ++i) {
    if (colors[i] == mine) ranks.push_back(i);
  }
  return ranks;
}

}  // namespace capstan
