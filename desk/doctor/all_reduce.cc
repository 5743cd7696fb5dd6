// SPDX-License-Identifier: Apache-2.0
#include "desk/doctor/all_reduce.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "cluster/comm/agree.h"
#include "desk/doctor/host.h"
#include "trainer/metrics/console.h"

namespace capstan::doctor {
namespace {

constexpr int64_t kKiB = 1024;
constexpr int64_t kMiB = 1024 * kKiB;
constexpr int kRepeats = 5;
constexpr int kBar = 40;  // columns

// Bus bandwidths in bytes/s below which something is wrong: what two cores, a
// PCIe 3.0 slot and a network of 1 Gbit/s carry.
constexpr double kLeastOfHost = 0.5e9;
constexpr double kLeastOfGpus = 8e9;
constexpr double kLeastOfNetwork = 0.1e9;

// Small whole numbers, so that any order of additions gives the same bits.
double WeightOf(int rank) { return rank % 8 + 1; }

void Barrier(ProcessGroup* group) {
  double one = 1;
  group->AllReduceHost(absl::MakeSpan(&one, 1));
}

int64_t CountWrong(ProcessGroup* group, const at::Tensor& pattern,
                   const at::Tensor& values) {
  double weights = 0;
  for (int rank = 0; rank < group->size(); ++rank) weights += WeightOf(rank);
  values.copy_(pattern).mul_(WeightOf(group->rank()));
  group->AllReduce(values)->Wait();
  auto wrong = at::sum(at::ne(values, pattern.mul(weights))).item<double>();
  group->AllReduceHost(absl::MakeSpan(&wrong, 1));
  return static_cast<int64_t>(wrong);
}

double FastestSeconds(ProcessGroup* group, const at::Tensor& values) {
  double fastest = std::numeric_limits<double>::max();
  values.zero_();
  for (int i = 0; i < kRepeats; ++i) {
    Barrier(group);
    const double begin = MonotonicSeconds();
    group->AllReduce(values)->Wait();
    // The host waits for a GPU.
    if (values.is_cuda()) values[0].item();
    const std::vector<double> seconds =
        FromAllRanks(*group, MonotonicSeconds() - begin);
    fastest =
        std::min(fastest, *std::max_element(seconds.begin(), seconds.end()));
  }
  return fastest;
}

}  // namespace

std::vector<Transfer> MeasureAllReduce(ProcessGroup* group) {
  const int64_t most = group->device().is_cuda() ? 256 * kMiB : 64 * kMiB;
  const int n = group->size();
  std::vector<Transfer> transfers;
  for (int64_t bytes = 4 * kKiB; bytes <= most; bytes *= 4) {
    const at::Tensor pattern =
        at::remainder(
            at::arange(bytes / 4, at::TensorOptions().dtype(at::kInt).device(
                                      group->device())),
            97)
            .add(1)
            .to(at::kFloat);
    const at::Tensor values = at::empty_like(pattern);
    Transfer transfer;
    transfer.bytes = bytes;
    transfer.wrong = CountWrong(group, pattern, values);
    transfer.seconds = FastestSeconds(group, values);
    transfer.bus_bytes_per_second =
        static_cast<double>(bytes) / transfer.seconds * 2 * (n - 1) / n;
    transfers.push_back(transfer);
    if (transfer.seconds > 1.0) break;
  }
  return transfers;
}

Finding JudgeAllReduce(const std::vector<Transfer>& transfers, int ranks,
                       int nodes, const std::string& backend) {
  const std::string who =
      absl::StrCat(ranks, " ranks on ", nodes, nodes == 1 ? " host" : " hosts",
                   ", ", backend, ": ");
  for (const Transfer& transfer : transfers) {
    if (transfer.wrong == 0) continue;
    return {Level::kFailure, "all-reduce",
            absl::StrCat(who, "wrong in ", transfer.wrong, " of ",
                         transfer.bytes / 4 * ranks, " numbers of ",
                         ShortBytes(transfer.bytes)),
            "nothing that is trained here can be trusted: test memory, GPUs "
            "and network cards, leaving out one host after the other"};
  }
  double rate = 0;
  for (const Transfer& transfer : transfers) {
    rate = std::max(rate, transfer.bus_bytes_per_second);
  }
  Finding finding = {
      Level::kOk, "all-reduce",
      absl::StrFormat("%sright at %d sizes, bus bandwidth up to %.3g GB/s", who,
                      static_cast<int>(transfers.size()), rate * 1e-9),
      ""};
  const bool gpus = backend == "nccl";
  const double least = nodes > 1 ? kLeastOfNetwork
                       : gpus    ? kLeastOfGpus
                                 : kLeastOfHost;
  if (ranks > 1 && rate < least) {
    absl::StrAppend(&finding.text,
                    absl::StrFormat(", below %.3g", least * 1e-9));
    finding.Warn(
        nodes > 1 ? "is it the intended network? Set launch.interface; with "
                    "InfiniBand NCCL_DEBUG=INFO says what NCCL takes"
        : gpus    ? "do the GPUs reach each other? See the lines on GPUs and "
                    "nvidia-smi topo -m"
               : "are there as many cores as ranks, and is the machine idle?");
  }
  return finding;
}

std::string TransferTable(const std::vector<Transfer>& transfers) {
  double most = 0;
  for (const Transfer& transfer : transfers) {
    most = std::max(most, transfer.bus_bytes_per_second);
  }
  std::string text =
      absl::StrFormat("%10s %10s %10s\n", "all-reduce", "time", "bus GB/s");
  for (const Transfer& transfer : transfers) {
    const double rate = transfer.bus_bytes_per_second;
    const auto bar =
        static_cast<int>(std::lround(kBar * rate / std::max(most, 1.0)));
    absl::StrAppend(
        &text,
        absl::StrFormat("%10s %10s %10.3f%s%s\n", ShortBytes(transfer.bytes),
                        ShortDuration(transfer.seconds), rate * 1e-9,
                        bar > 0 ? "  " : "", std::string(bar, '#')));
  }
  return text;
}

std::vector<double> MeasureSkew(ProcessGroup* group) {
  std::vector<double> least;
  // All leave a barrier at almost the same time; the nearest of some tries.
  for (int i = 0; i < 10; ++i) {
    Barrier(group);
    std::vector<double> times = FromAllRanks(*group, RealSeconds());
    const double first = times[0];
    for (double& time : times) time -= first;
    if (least.empty()) least = times;
    for (size_t rank = 0; rank < times.size(); ++rank) {
      if (std::abs(times[rank]) < std::abs(least[rank])) {
        least[rank] = times[rank];
      }
    }
  }
  return least;
}

Finding JudgeSkew(const std::vector<double>& skew) {
  size_t worst = 0;
  for (size_t rank = 0; rank < skew.size(); ++rank) {
    if (std::abs(skew[rank]) > std::abs(skew[worst])) worst = rank;
  }
  const double seconds = std::abs(skew[worst]);
  Finding finding = {
      Level::kOk, "clocks",
      absl::StrFormat("hosts' clocks within %s", ShortDuration(seconds)), ""};
  if (seconds > 1.0) {
    finding.text = absl::StrFormat(
        "rank %d's clock is %s %s of rank 0's", static_cast<int>(worst),
        ShortDuration(seconds), skew[worst] > 0 ? "ahead" : "behind");
    finding.Warn(
        "times of files and logs can't be compared: run chrony or ntpd on all "
        "hosts");
  }
  return finding;
}

}  // namespace capstan::doctor
