// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/backend_group.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <glog/logging.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/backend_error.h"
#include "cluster/comm/nccl_network.h"
#include "cluster/comm/phase_group.h"
#include "cluster/comm/single_group.h"

namespace capstan {
namespace {

// Throws CommunicationError with `what`, from an exception of c10d. It does so
// even if NCCL runs out of memory: its communicators can't be used again, so no
// smaller batch can be tried.
[[noreturn]] void Fail(int rank, absl::string_view collective,
                       absl::string_view what, bool timed_out = false) {
  if (IsOutOfMemory(what)) {
    throw CommunicationError(absl::StrCat(
        "rank ", rank, ": out of memory of the GPU, in NCCL, during ",
        collective, ": use a smaller micro-batch, or smaller buffers ",
        "(launch.nccl.buffer_mib)"));
  }
  const std::string message = BackendMessage(what);
  timed_out |= IsTimeout(message);
  const std::string warnings = NcclWarnings(NcclLog(), message);
  throw CommunicationError(
      absl::StrCat("rank ", rank,
                   timed_out ? " waited too long for another rank during "
                             : " lost the connection to another rank during ",
                   collective, ": ", message,
                   warnings.empty() ? "" : "; NCCL has warned: ", warnings));
}

// Calls `function`; exceptions due to a lost peer or network become
// CommunicationError, others propagate. On a device (else both may be null) the
// collective that failed may be an earlier one, which `progress` knows, and why
// its communicator was aborted, `backend` does.
template <typename Function>
auto Translate(int rank, const char* collective, const GroupProgress* progress,
               c10d::Backend* backend, Function function) {
  const auto name = [&]() -> std::string {
    const std::string failed = progress != nullptr ? progress->Failed() : "";
    return failed.empty() ? collective : failed;
  };
  const auto timed_out = [&] {
    return progress != nullptr &&
           backend->getError() == c10d::ErrorType::TIMEOUT;
  };
  try {
    return function();
  } catch (const c10::DistError& e) {
    Fail(rank, name(), e.what_without_backtrace(), timed_out());
  } catch (const std::runtime_error& e) {
    // gloo::IoException and related types; c10::Error isn't one of them.
    Fail(rank, name(), e.what(), timed_out());
  }
}

class BackendWork : public Work {
 public:
  // Keeps the tensors alive; decrements `under_way` when done. `meter` is null
  // if Wait doesn't block. Wait finally calls `finish`, if set.
  BackendWork(c10::intrusive_ptr<c10d::Work> work,
              std::vector<at::Tensor> tensors, int rank, const char* collective,
              std::shared_ptr<std::atomic<int>> under_way,
              std::shared_ptr<CommunicationMeter> meter,
              std::shared_ptr<DeviceTimes> times,
              std::shared_ptr<GroupProgress> progress, c10d::Backend* backend,
              std::function<void()> finish)
      : work_(std::move(work)),
        tensors_(std::move(tensors)),
        rank_(rank),
        collective_(collective),
        under_way_(std::move(under_way)),
        meter_(std::move(meter)),
        times_(std::move(times)),
        progress_(std::move(progress)),
        backend_(backend),
        finish_(std::move(finish)) {}

  void Wait() override {
    if (done_) return;
    const auto begin = std::chrono::steady_clock::now();
    if (times_ != nullptr) times_->BeforeWait();
    Translate(rank_, collective_, progress_.get(), backend_,
              [this] { return work_->wait(); });
    if (times_ != nullptr) times_->AfterWait(*work_);
    if (finish_ != nullptr) finish_();
    if (meter_ != nullptr) {
      meter_->Waited(std::chrono::steady_clock::now() - begin);
    }
    --*under_way_;
    done_ = true;
  }

 private:
  const c10::intrusive_ptr<c10d::Work> work_;
  const std::vector<at::Tensor> tensors_;
  const int rank_;
  const char* const collective_;
  const std::shared_ptr<std::atomic<int>> under_way_;
  const std::shared_ptr<CommunicationMeter> meter_;
  const std::shared_ptr<DeviceTimes> times_;
  const std::shared_ptr<GroupProgress> progress_;
  c10d::Backend* const backend_;  // there for good on a GPU
  const std::function<void()> finish_;
  bool done_ = false;
};

}  // namespace

BackendGroup::BackendGroup(Connect connect, std::string name, int rank,
                           int size, at::Device device,
                           std::unique_ptr<ProcessGroup> host,
                           std::shared_ptr<DeviceTimes> times)
    : BackendGroup(std::move(connect), name, name, device, rank, size, rank,
                   std::move(host), std::make_shared<CommunicationMeter>(),
                   std::move(times), std::make_shared<DeviceGroups>()) {}

BackendGroup::BackendGroup(Connect connect, std::string name,
                           std::string prefix, at::Device device, int rank,
                           int size, int named_rank,
                           std::unique_ptr<ProcessGroup> host,
                           std::shared_ptr<CommunicationMeter> meter,
                           std::shared_ptr<DeviceTimes> times,
                           std::shared_ptr<DeviceGroups> on_device)
    : connect_(std::move(connect)),
      name_(std::move(name)),
      prefix_(std::move(prefix)),
      device_(device),
      named_rank_(named_rank),
      host_(std::move(host)),
      meter_(std::move(meter)),
      times_(std::move(times)),
      on_device_(std::move(on_device)),
      log_(/*sees_ends=*/device.is_cpu() || Follows(), /*in_order=*/Follows()),
      backend_(connect_(prefix_, rank, size)) {
  if (Follows()) {
    progress_ = std::make_shared<GroupProgress>(log_, [backend = backend_] {
      return backend->getError() != c10d::ErrorType::SUCCESS;
    });
    if (on_device_->thread == nullptr) {
      on_device_->thread = std::make_unique<ProgressThread>();
    }
    on_device_->thread->Add(progress_);
  }
  if (!device_.is_cpu()) on_device_->groups.push_back({backend_, progress_});
}

BackendGroup::~BackendGroup() {
  // The destructors of Gloo and NCCL wait for peers that may be lost, while the
  // launcher waits for this rank's own error.
  if (!device_.is_cpu() || *under_way_ > 0) backend_.release();
}

template <typename Function>
std::unique_ptr<Work> BackendGroup::Begin(const char* collective,
                                          std::vector<at::Tensor> tensors,
                                          Function start,
                                          std::function<void()> finish) {
  // On CUDA the host doesn't see the wait.
  const std::shared_ptr<CommunicationMeter> meter =
      device_.is_cpu() ? meter_ : nullptr;
  if (meter != nullptr) meter->Started();
  const auto bytes = static_cast<int64_t>(tensors.back().nbytes());
  uint64_t number = 0;
  if (progress_ == nullptr) {
    number = log_.Issued(collective, bytes);
    log_.Started(number);
  } else {
    number = progress_->Entered(collective, bytes);
  }
  auto work = Translate(named_rank_, collective, progress_.get(),
                        backend_.get(), start);
  ++*under_way_;
  if (progress_ != nullptr) {
    progress_->Issued(number, times_->Follow(*work));
  }
  if (meter != nullptr) {
    work->getFuture()->addCallback(
        [meter, log = log_, number](c10::ivalue::Future&) {
          log.Finished(number);
          meter->Finished();
        });
  }
  return std::make_unique<BackendWork>(
      std::move(work), std::move(tensors), named_rank_, collective, under_way_,
      meter, times_, progress_, backend_.get(), std::move(finish));
}

CommunicationStats BackendGroup::stats() const {
  if (times_ != nullptr) {
    const DeviceTimes::Seconds measured = times_->Take();
    meter_->Measured(measured.busy, measured.exposed);
  }
  CommunicationStats stats = meter_->stats();
  if (host_ != nullptr) stats.bytes_sent += host_->stats().bytes_sent;
  return stats;
}

int64_t BackendGroup::RingBytes(const at::Tensor& tensor) const {
  return static_cast<int64_t>(tensor.nbytes()) * (size() - 1) / size();
}

void BackendGroup::CheckTensor(const at::Tensor& tensor) const {
  CHECK(tensor.device() == device_)
      << "collectives need tensors on " << device_.str() << ", not "
      << tensor.device().str();
  CHECK(tensor.is_contiguous()) << "collectives need contiguous tensors";
}

std::unique_ptr<Work> BackendGroup::AllReduce(const at::Tensor& tensor) {
  CheckTensor(tensor);
  if (tensor.numel() == 0) return NothingToWaitFor();
  meter_->Sent(2 * RingBytes(tensor));
  std::vector<at::Tensor> tensors = {tensor};
  return Begin("all-reduce", tensors,
               [&] { return backend_->allreduce(tensors); });
}

std::unique_ptr<Work> BackendGroup::ReduceScatter(const at::Tensor& output,
                                                  const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(input.numel(), output.numel() * size());
  if (input.numel() == 0) return NothingToWaitFor();
  meter_->Sent(RingBytes(input));
  if (device_.is_cpu()) {
    // Does what Gloo's own implementation does, which doesn't report
    // completion.
    const at::Tensor sum = input.clone();
    const int64_t begin = rank() * output.numel();
    std::vector<at::Tensor> tensors = {sum};
    return Begin(
        "reduce-scatter", tensors, [&] { return backend_->allreduce(tensors); },
        [output, sum, begin] {
          output.view({-1}).copy_(
              sum.view({-1}).narrow(0, begin, output.numel()));
        });
  }
  at::Tensor out = output;
  at::Tensor in = input;
  return Begin("reduce-scatter", {output, input},
               [&] { return backend_->_reduce_scatter_base(out, in); });
}

std::unique_ptr<Work> BackendGroup::AllGather(const at::Tensor& output,
                                              const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.numel(), input.numel() * size());
  if (output.numel() == 0) return NothingToWaitFor();
  meter_->Sent(RingBytes(output));
  at::Tensor out = output;
  at::Tensor in = input;
  return Begin("all-gather", {input, output},
               [&] { return backend_->_allgather_base(out, in); });
}

std::unique_ptr<Work> BackendGroup::Broadcast(const at::Tensor& tensor,
                                              int root) {
  CheckTensor(tensor);
  CHECK_LT(root, size());
  if (tensor.numel() == 0) return NothingToWaitFor();
  if (rank() == root) meter_->Sent(tensor.nbytes());
  std::vector<at::Tensor> tensors = {tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  return Begin("broadcast", tensors,
               [&] { return backend_->broadcast(tensors, options); });
}

std::unique_ptr<Work> BackendGroup::AllToAll(const at::Tensor& output,
                                             const at::Tensor& input) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.nbytes(), input.nbytes());
  CHECK_EQ(input.numel() % size(), 0);
  if (input.numel() == 0) return NothingToWaitFor();
  meter_->Sent(RingBytes(input));
  at::Tensor out = output.view({-1});
  at::Tensor in = input.view({-1});
  std::vector<int64_t> equal;
  return Begin("all-to-all", {output, input},
               [&] { return backend_->alltoall_base(out, in, equal, equal); });
}

std::unique_ptr<Work> BackendGroup::SendRecv(const at::Tensor& output, int from,
                                             const at::Tensor& input, int to) {
  CheckTensor(output);
  CheckTensor(input);
  CHECK_EQ(output.nbytes(), input.nbytes());
  CHECK_LT(std::max(from, to), size());
  if (input.numel() == 0) return NothingToWaitFor();
  if (to >= 0) meter_->Sent(input.nbytes());
  // An all-to-all in which all but one slice of a rank are empty.
  std::vector<int64_t> sent(size()), received(size());
  if (to >= 0) sent[to] = input.numel();
  if (from >= 0) received[from] = output.numel();
  at::Tensor out =
      output.view({-1}).narrow(0, 0, from < 0 ? 0 : output.numel());
  at::Tensor in = input.view({-1}).narrow(0, 0, to < 0 ? 0 : input.numel());
  return Begin("send-recv", {output, input}, [&] {
    return backend_->alltoall_base(out, in, received, sent);
  });
}

void BackendGroup::AllReduceHost(absl::Span<double> values) {
  if (values.empty()) return;
  if (host_ != nullptr) {
    CheckDevice();
    host_->AllReduceHost(values);
    return;
  }
  CHECK(device_.is_cpu()) << "a rank on paper has nobody to sum with";
  AllReduce(at::from_blob(values.data(), {static_cast<int64_t>(values.size())},
                          at::TensorOptions().dtype(at::kDouble)))
      ->Wait();
}

// NCCL's thread records an error before it aborts the communicator, which lets
// the device continue. So whoever has read later results of the device sees the
// error.
void BackendGroup::CheckDevice() {
  for (const OnDevice& group : on_device_->groups) {
    if (group.backend->getError() == c10d::ErrorType::SUCCESS) continue;
    // The next collective of an aborted communicator throws the reason.
    std::vector<at::Tensor> tensors = {
        at::empty({1}, at::TensorOptions().device(device_))};
    Translate(named_rank_, "all-reduce", group.progress.get(),
              group.backend.get(),
              [&] { return group.backend->allreduce(tensors); });
    Fail(named_rank_, "a collective", "NCCL has ended it");
  }
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> BackendGroup::Split(int color) {
  CHECK_GE(color, 0);
  std::vector<int> colors;
  try {
    if (host_ != nullptr) {
      const std::string prefix = NextPrefix(color);
      CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<ProcessGroup> host,
                               host_->Split(color));
      const int rank = host->rank(), size = host->size();
      return Part(prefix, rank, size, std::move(host));
    }
    std::vector<double> all(size());
    all[rank()] = color;
    AllReduceHost(absl::MakeSpan(all));
    colors.assign(all.begin(), all.end());
  } catch (...) {
    return CouldNotSplit(color);
  }
  return SplitBy(colors);
}

absl::StatusOr<std::unique_ptr<ProcessGroup>> BackendGroup::SplitBy(
    absl::Span<const int> colors) {
  CHECK_EQ(colors.size(), static_cast<size_t>(size()));
  const int color = colors[rank()];
  try {
    const std::string prefix = NextPrefix(color);
    const auto members = std::count(colors.begin(), colors.end(), color);
    const auto before =
        std::count(colors.begin(), colors.begin() + rank(), color);
    return Part(prefix, static_cast<int>(before), static_cast<int>(members),
                /*host=*/nullptr);
  } catch (...) {
    return CouldNotSplit(color);
  }
}

std::unique_ptr<ProcessGroup> BackendGroup::Part(
    const std::string& prefix, int rank, int size,
    std::unique_ptr<ProcessGroup> host) {
  if (size == 1) return CreateSingleGroup(device_);
  return absl::WrapUnique(new BackendGroup(
      connect_, name_, prefix, device_, rank, size, named_rank_,
      std::move(host), std::make_shared<CommunicationMeter>(meter_), times_,
      on_device_));
}

std::string BackendGroup::NextPrefix(int color) {
  return absl::StrCat(prefix_, "/", splits_++, ".", color);
}

absl::Status BackendGroup::CouldNotSplit(int color) const {
  absl::Status why;
  try {
    throw;
  } catch (const c10::DistError& e) {
    if (IsOutOfMemory(e.what_without_backtrace())) {
      return NcclOutOfMemory(named_rank_, device_.index());
    }
    why = CurrentExceptionToStatus();
  } catch (...) {
    why = CurrentExceptionToStatus();
  }
  return LostPeerError(absl::StrCat("rank ", named_rank_,
                                    " could not connect to the other ranks of "
                                    "its group ",
                                    color, ": ", why.message()));
}

ProcessGroup& HostGroupOf(ProcessGroup& group) {
  if (auto* const around = dynamic_cast<GroupAround*>(&group)) {
    return HostGroupOf(around->inner());
  }
  auto* const backend = dynamic_cast<BackendGroup*>(&group);
  return backend != nullptr && backend->host() != nullptr ? *backend->host()
                                                          : group;
}

}  // namespace capstan
