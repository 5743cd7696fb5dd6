// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_group.h"

#include <glog/logging.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/process_group/communication_meter.h"
#include "trainer/process_group/rendezvous.h"
#include "trainer/process_group/shm/shm_collectives.h"
#include "trainer/process_group/shm/shm_meeting.h"
#include "trainer/process_group/single_group.h"

namespace capstan {
namespace {

// A FIFO of tasks. After one has failed the rest don't run and get its error.
class ShmQueue {
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

 private:
  std::mutex mutex_;
  std::condition_variable put_;
  std::condition_variable done_;
  std::deque<Task> tasks_;
  int64_t put_count_ = 0;
  int64_t done_count_ = 0;
  bool stopped_ = false;
  absl::Status status_;
};

int64_t ShmQueue::Put(Task task) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) {
    tasks_.push_back(std::move(task));
    put_.notify_one();
  }
  return ++put_count_;
}

absl::Status ShmQueue::RunNow(const Task& task) {
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (put_count_ != done_count_) {
      lock.unlock();
      return Wait(Put(task));
    }
    if (!status_.ok()) return status_;
    // Put's only caller is this thread: the worker stays idle meanwhile.
    ++put_count_;
  }
  const absl::Status status = task();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (status.ok()) ++done_count_;
  status_.Update(status);
  return status;
}

absl::Status ShmQueue::Wait(int64_t number) {
  std::unique_lock<std::mutex> lock(mutex_);
  done_.wait(lock, [&] { return done_count_ >= number || !status_.ok(); });
  return done_count_ >= number ? absl::OkStatus() : status_;
}

void ShmQueue::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    put_.wait(lock, [&] { return stopped_ || !tasks_.empty(); });
    if (stopped_) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    const absl::Status status = task();
    // Release its captures before Wait returns.
    task = nullptr;
    lock.lock();
    if (status.ok()) {
      ++done_count_;
    } else {
      status_.Update(status);
      tasks_.clear();
    }
    done_.notify_all();
  }
}

void ShmQueue::Stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
  status_.Update(absl::CancelledError("the process group is closed"));
  tasks_.clear();
  put_.notify_all();
  done_.notify_all();
}

// A rank of a group being created.
struct ShmMember {
  int place;  // its rank among those that exchange texts
  int name;   // its rank in the run
};

// All-gathers a short text; returns the texts by rank.
using ExchangeFunction = std::function<absl::StatusOr<std::vector<std::string>>(
    const std::string& mine)>;

// The meeting in the segment created by members[0] (unless that is this rank).
// `texts` are "PID ADDRESS".
absl::StatusOr<std::unique_ptr<ShmMeeting>> OpenMeeting(
    const std::vector<ShmMember>& members, int index,
    const std::vector<std::string>& texts,
    absl::StatusOr<std::unique_ptr<ShmSegment>> segment) {
  std::vector<ShmPeer> peers;
  for (const ShmMember& member : members) {
    int pid = 0;
    if (!absl::SimpleAtoi(
            texts[member.place].substr(0, texts[member.place].find(' ')),
            &pid)) {
      return absl::InternalError("a rank told no process id");
    }
    peers.push_back({member.name, pid});
  }
  if (index != 0) {
    const std::string& first = texts[members[0].place];
    segment = ShmSegment::Open(first.substr(first.find(' ') + 1),
                               static_cast<int>(members.size()));
  }
  CAPSTAN_RETURN_IF_ERROR(segment.status());
  return ShmMeeting::Create(*std::move(segment), index, std::move(peers),
                            kCollectiveTimeout);
}

// Creates or opens the segment shared by `members`, of which this process is
// number `place`; null for a single one. Called by all ranks that exchange
// texts at once, each with its own group. FAILED_PRECONDITION for a whole group
// if any member fails.
absl::StatusOr<std::unique_ptr<ShmMeeting>> JoinShmMeeting(
    const std::vector<ShmMember>& members, int place,
    const ExchangeFunction& exchange) {
  const auto self =
      std::find_if(members.begin(), members.end(),
                   [&](const ShmMember& m) { return m.place == place; });
  const int index = static_cast<int>(self - members.begin());
  const bool alone = members.size() == 1;
  absl::StatusOr<std::unique_ptr<ShmSegment>> segment =
      std::unique_ptr<ShmSegment>();
  if (index == 0 && !alone) {
    segment = ShmSegment::Create(static_cast<int>(members.size()));
  }
  const std::string address =
      segment.ok() && *segment != nullptr ? (*segment)->address() : "";
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                           exchange(absl::StrCat(getpid(), " ", address)));
  absl::StatusOr<std::unique_ptr<ShmMeeting>> meeting =
      std::unique_ptr<ShmMeeting>();
  if (!alone) {
    meeting = OpenMeeting(members, index, texts, std::move(segment));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> results,
                           exchange(meeting.ok() ? "ok" : "failed"));
  for (const ShmMember& member : members) {
    if (results[member.place] == "ok") continue;
    return absl::FailedPreconditionError(absl::StrCat(
        "rank ", member.name, " can't share memory with the other ranks",
        meeting.ok() ? "" : ": ", meeting.status().message()));
  }
  // All have mapped it.
  if (!alone) (*meeting)->segment()->CloseFile();
  return meeting;
}

using Clock = std::chrono::steady_clock;

// Maximum length of texts exchanged when a group splits.
constexpr int64_t kTextBytes = 64;

class QueuedWork final : public Work {
 public:
  QueuedWork(std::shared_ptr<ShmQueue> queue, int64_t number,
             std::shared_ptr<CommunicationMeter> meter)
      : queue_(std::move(queue)), number_(number), meter_(std::move(meter)) {}

  void Wait() override {
    const Clock::time_point begin = Clock::now();
    const absl::Status status = queue_->Wait(number_);
    meter_->Waited(Clock::now() - begin);
    if (!status.ok()) throw CommunicationError(std::string(status.message()));
  }

 private:
  const std::shared_ptr<ShmQueue> queue_;
  const int64_t number_;
  const std::shared_ptr<CommunicationMeter> meter_;
};

// `status` of `collective`, worded as in the other process groups.
absl::Status Describe(const absl::Status& status, int rank,
                      const char* collective) {
  if (status.ok()) return status;
  const bool timed_out = absl::IsDeadlineExceeded(status);
  return absl::Status(
      status.code(),
      absl::StrCat("rank ", rank,
                   timed_out ? " waited too long for another rank during "
                             : " lost the connection to another rank during ",
                   collective, ": ", status.message()));
}

void CheckTensor(const at::Tensor& tensor) {
  CHECK(tensor.device().is_cpu())
      << "collectives need tensors on cpu, not " << tensor.device().str();
  CHECK(tensor.is_contiguous()) << "collectives need contiguous tensors";
}

SumFunction CheckedSum(const at::Tensor& tensor) {
  const SumFunction sum = SumOf(tensor.scalar_type());
  CHECK(sum != nullptr) << "can't sum tensors of "
                        << at::toString(tensor.scalar_type());
  return sum;
}

char* Data(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

// A process group of CPU ranks on one host, over shared memory. Collectives run
// in order on the group's own thread.
class ShmGroup final : public ProcessGroup {
 public:
  ShmGroup(std::unique_ptr<ShmMeeting> meeting,
           std::shared_ptr<CommunicationMeter> meter);
  // Aborts pending collectives without waiting for other ranks.
  ~ShmGroup() override;

  int rank() const override { return meeting_->rank(); }
  int size() const override { return meeting_->size(); }
  at::Device device() const override { return at::kCPU; }
  std::string backend() const override { return "shm"; }

  std::unique_ptr<Work> AllReduce(const at::Tensor& tensor) override;
  std::unique_ptr<Work> ReduceScatter(const at::Tensor& output,
                                      const at::Tensor& input) override;
  std::unique_ptr<Work> AllGather(const at::Tensor& output,
                                  const at::Tensor& input) override;
  std::unique_ptr<Work> Broadcast(const at::Tensor& tensor, int root) override;
  void AllReduceHost(absl::Span<double> values) override;
  absl::StatusOr<std::unique_ptr<ProcessGroup>> Split(int color) override;
  CommunicationStats stats() const override { return meter_->stats(); }

  // Blocks until all ranks have called it. UNAVAILABLE if one never will.
  absl::Status Barrier();

 private:
  // Wraps `run`, the collective, with metering and error messages.
  ShmQueue::Task Prepare(const char* collective, int64_t bytes_sent,
                         ShmQueue::Task run);
  // Queues it for the group's thread. `run` keeps the tensors alive.
  std::unique_ptr<Work> Begin(const char* collective, int64_t bytes_sent,
                              ShmQueue::Task run);
  // Runs it at once, on this thread if possible.
  absl::Status RunNow(const char* collective, int64_t bytes_sent,
                      ShmQueue::Task run);
  // All-gathers a short text.
  absl::StatusOr<std::vector<std::string>> ExchangeTexts(
      const std::string& mine);
  // Bytes that a rank sends in a ring over `bytes`.
  int64_t RingBytes(int64_t bytes) const {
    return bytes * (size() - 1) / size();
  }

  const std::unique_ptr<ShmMeeting> meeting_;
  ShmCollectives collectives_{meeting_.get()};
  const std::shared_ptr<CommunicationMeter> meter_;
  const std::shared_ptr<ShmQueue> queue_;
  std::thread worker_;
};

ShmGroup::ShmGroup(std::unique_ptr<ShmMeeting> meeting,
                   std::shared_ptr<CommunicationMeter> meter)
    : meeting_(std::move(meeting)),
      meter_(std::move(meter)),
      queue_(std::make_shared<ShmQueue>()),
      worker_([queue = queue_] { queue->Work(); }) {}

ShmGroup::~ShmGroup() {
  queue_->Stop();
  meeting_->Stop();
  worker_.join();
}

ShmQueue::Task ShmGroup::Prepare(const char* collective, int64_t bytes_sent,
                                 ShmQueue::Task run) {
  meter_->Sent(bytes_sent);
  meter_->Started();
  return [this, collective, run = std::move(run)] {
    const absl::Status status = Describe(run(), meeting_->name(), collective);
    meter_->Finished();
    // Lets the others know at once.
    if (!status.ok()) meeting_->Leave();
    return status;
  };
}

std::unique_ptr<Work> ShmGroup::Begin(const char* collective,
                                      int64_t bytes_sent, ShmQueue::Task run) {
  return std::make_unique<QueuedWork>(
      queue_, queue_->Put(Prepare(collective, bytes_sent, std::move(run))),
      meter_);
}

absl::Status ShmGroup::RunNow(const char* collective, int64_t bytes_sent,
                              ShmQueue::Task run) {
  const Clock::time_point begin = Clock::now();
  const absl::Status status =
      queue_->RunNow(Prepare(collective, bytes_sent, std::move(run)));
  meter_->Waited(Clock::now() - begin);
  return status;
}

std::unique_ptr<Work> ShmGroup::AllReduce(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (tensor.numel() == 0) return NothingToWaitFor();
  return Begin("all-reduce", 2 * RingBytes(tensor.nbytes()),
               [this, tensor, sum = CheckedSum(tensor)] {
                 return collectives_.AllReduce(
                     Data(tensor), tensor.numel(),
                     static_cast<int>(tensor.element_size()), sum);
               });
}

std::unique_ptr<Work> ShmGroup::ReduceScatter(const at::Tensor& output,
                                              const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(input.numel(), output.numel() * size());
  CHECK(output.scalar_type() == input.scalar_type());
  if (input.numel() == 0) return NothingToWaitFor();
  return Begin("reduce-scatter", RingBytes(input.nbytes()),
               [this, output, input, sum = CheckedSum(input)] {
                 return collectives_.ReduceScatter(
                     Data(output), Data(input), output.numel(),
                     static_cast<int>(output.element_size()), sum);
               });
}

std::unique_ptr<Work> ShmGroup::AllGather(const at::Tensor& output,
                                          const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.numel(), input.numel() * size());
  CHECK(output.scalar_type() == input.scalar_type());
  if (output.numel() == 0) return NothingToWaitFor();
  return Begin("all-gather", RingBytes(output.nbytes()), [this, output, input] {
    return collectives_.AllGather(Data(output), Data(input), input.nbytes());
  });
}

std::unique_ptr<Work> ShmGroup::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  CHECK_LT(root, size());
  if (tensor.numel() == 0) return NothingToWaitFor();
  return Begin(
      "broadcast", rank() == root ? tensor.nbytes() : 0, [this, tensor, root] {
        return collectives_.Broadcast(Data(tensor), tensor.nbytes(), root);
      });
}

void ShmGroup::AllReduceHost(absl::Span<double> values) {
  if (values.empty()) return;
  const int64_t bytes = static_cast<int64_t>(values.size()) * sizeof(double);
  const absl::Status status =
      RunNow("all-reduce", 2 * RingBytes(bytes), [this, values] {
        return collectives_.AllReduce(reinterpret_cast<char*>(values.data()),
                                      static_cast<int64_t>(values.size()),
                                      sizeof(double),
                                      SumOf(c10::ScalarType::Double));
      });
  if (!status.ok()) throw CommunicationError(std::string(status.message()));
}

absl::Status ShmGroup::Barrier() {
  return RunNow("start", 0, [this] { return collectives_.Barrier(); });
}

absl::StatusOr<std::vector<std::string>> ShmGroup::ExchangeTexts(
    const std::string& mine) {
  CHECK_LT(mine.size(), kTextBytes);
  std::vector<char> input(kTextBytes);
  std::copy(mine.begin(), mine.end(), input.begin());
  std::vector<char> output(kTextBytes * size());
  CAPSTAN_RETURN_IF_ERROR(
      RunNow("split", RingBytes(output.size()), [this, &input, &output] {
        return collectives_.AllGather(output.data(), input.data(), kTextBytes);
      }));
  std::vector<std::string> texts;
  for (int i = 0; i < size(); ++i) {
    texts.emplace_back(output.data() + i * kTextBytes);
  }
  return texts;
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> ShmGroup::Split(int color) {
  CHECK_GE(color, 0);
  const std::string mine = absl::StrCat(color);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> colors,
                           ExchangeTexts(mine));
  std::vector<ShmMember> members;
  for (int i = 0; i < size(); ++i) {
    if (colors[i] == mine) members.push_back({i, meeting_->name(i)});
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      std::unique_ptr<ShmMeeting> meeting,
      JoinShmMeeting(members, rank(), [this](const std::string& text) {
        return ExchangeTexts(text);
      }));
  if (members.size() == 1) return CreateSingleGroup(at::kCPU);
  auto group = std::make_unique<ShmGroup>(
      std::move(meeting), std::make_shared<CommunicationMeter>(meter_));
  CAPSTAN_RETURN_IF_ERROR(group->Barrier());
  return group;
}

// Equal for processes that can open each other's files under /proc; empty if
// shared memory isn't to be used.
std::string HostText() {
  const char* choice = getenv("CAPSTAN_CPU_COLLECTIVES");
  if (choice != nullptr && std::string(choice) == "gloo") return "";
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  char name[256] = {};
  struct stat processes = {};
  if (boot.empty() || gethostname(name, sizeof(name) - 1) != 0 ||
      stat("/proc/self/ns/pid", &processes) != 0) {
    return "";
  }
  return absl::StrCat(boot, " ", name, " ", processes.st_ino, " ", geteuid());
}

ExchangeFunction ExchangeThrough(c10d::Store* store, const RankInfo& info) {
  return [store, &info, round = 0](const std::string& mine) mutable
         -> absl::StatusOr<std::vector<std::string>> {
    ++round;
    const auto key = [&](int rank) {
      return absl::StrCat("capstan/shm/", round, "/", rank);
    };
    // Some stores reject empty values.
    const std::string value = absl::StrCat("=", mine);
    store->set(key(info.rank),
               std::vector<uint8_t>(value.begin(), value.end()));
    std::vector<std::string> keys;
    for (int rank = 0; rank < info.world_size; ++rank) {
      keys.push_back(key(rank));
    }
    std::vector<std::string> texts;
    for (const std::vector<uint8_t>& bytes : store->multiGet(keys)) {
      texts.emplace_back(bytes.begin() + 1, bytes.end());
    }
    return texts;
  };
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> TryShmGroup(const RankInfo& info,
                                                          c10d::Store* store) {
  const ExchangeFunction exchange = ExchangeThrough(store, info);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<std::string> hosts,
                           exchange(HostText()));
  std::vector<ShmMember> members;
  for (int rank = 0; rank < info.world_size; ++rank) {
    if (hosts[rank].empty() || hosts[rank] != hosts[0]) return nullptr;
    members.push_back({rank, rank});
  }
  auto meeting = JoinShmMeeting(members, info.rank, exchange);
  if (absl::IsFailedPrecondition(meeting.status())) return nullptr;
  CAPSTAN_RETURN_IF_ERROR(meeting.status());
  auto group = std::make_unique<ShmGroup>(
      *std::move(meeting), std::make_shared<CommunicationMeter>());
  // After this nobody needs the store, whose process may exit.
  CAPSTAN_RETURN_IF_ERROR(group->Barrier());
  return group;
}

}  // namespace capstan
