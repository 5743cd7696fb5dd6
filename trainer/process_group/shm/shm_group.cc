// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_group.h"

#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/process_group/shm/shm_join.h"
#include "trainer/process_group/single_group.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

// Longest text that ranks tell each other when a group splits.
constexpr int64_t kTextBytes = 64;

class NothingToDo final : public Work {
 public:
  void Wait() override {}
};

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

// `status` of `collective` in the words of the other process groups.
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

}  // namespace

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
    // The others learn it at once.
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
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
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
  if (input.numel() == 0) return std::make_unique<NothingToDo>();
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
  if (output.numel() == 0) return std::make_unique<NothingToDo>();
  return Begin("all-gather", RingBytes(output.nbytes()), [this, output, input] {
    return collectives_.AllGather(Data(output), Data(input), input.nbytes());
  });
}

std::unique_ptr<Work> ShmGroup::Broadcast(const at::Tensor& tensor, int root) {
  CheckTensor(tensor);
  CHECK_LT(root, size());
  if (tensor.numel() == 0) return std::make_unique<NothingToDo>();
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

}  // namespace capstan
