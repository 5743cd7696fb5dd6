// SPDX-License-Identifier: Apache-2.0
//
// How long collectives of CPU ranks take, and how much time of the cores.
// Prints a table, in Markdown.
//
//     bazel run //bench:collectives -- [RANKS,.. [MIB,..]]
//
// A size like 4k is in KiB. For RANKS "env" this process is one rank, which its
// environment names as under torchrun (bench/hosts_bench.py). Otherwise the
// ranks are on this machine. CAPSTAN_CPU_COLLECTIVES=gloo measures Gloo where
// shared memory is the default. "beside computation" is what an all-reduce adds
// to the time of a computation that all ranks do meanwhile.
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <stdio.h>
#include <sys/resource.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/comm/create.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/place.h"
#include "cluster/launch/rank_info.h"

namespace capstan {
namespace {

// User and system time of this process's threads.
double CpuSeconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void Barrier(ProcessGroup* group) {
  double one = 1;
  group->AllReduceHost(absl::MakeSpan(&one, 1));
}

struct Cost {
  double wall_ms = 0;  // the shortest: others may be using the machine
  double cpu_ms = 0;   // of all ranks together, the mean
};

// Of calls of the functions in turn, each made by all ranks at the same time.
std::vector<Cost> Measure(ProcessGroup* group, int repeats,
                          const std::vector<std::function<void()>>& functions) {
  std::vector<Cost> costs(functions.size());
  // The first time is for warming up.
  for (int i = -1; i < repeats; ++i) {
    for (size_t f = 0; f < functions.size(); ++f) {
      Barrier(group);
      const double cpu_begin = CpuSeconds();
      const double begin = MonotonicSeconds();
      functions[f]();
      Barrier(group);
      const double wall_ms = 1e3 * (MonotonicSeconds() - begin);
      double cpu = CpuSeconds() - cpu_begin;
      group->AllReduceHost(absl::MakeSpan(&cpu, 1));
      if (i < 0) continue;
      if (i == 0 || wall_ms < costs[f].wall_ms) costs[f].wall_ms = wall_ms;
      costs[f].cpu_ms += 1e3 * cpu / repeats;
    }
  }
  return costs;
}

// Keeps a core busy for about 100 ms without much memory.
void Compute() {
  [[maybe_unused]] static volatile float sink;
  float values[256] = {};
  for (int step = 0; step < 2000000; ++step) {
    for (int i = 0; i < 256; ++i) values[i] = values[i] * 0.5f + i;
  }
  sink = values[1];
}

void Print(const ProcessGroup& group, int64_t kib, const char* name,
           const Cost& cost) {
  if (group.rank() != 0) return;
  printf("| %s | %d | %.6g | %s | %.3f | %.3f | %.2f |\n",
         group.backend().c_str(), group.size(), kib / 1024.0, name,
         cost.wall_ms, cost.cpu_ms, kib * 1024e-6 / cost.wall_ms);
  fflush(stdout);
}

// all: what hosts_bench.py doesn't read, too.
void MeasureSize(ProcessGroup* group, int64_t kib, bool all) {
  const int n = group->size();
  const int repeats = static_cast<int>(
      std::min<int64_t>(100, std::max<int64_t>(7, (100 << 10) / kib)));
  const int64_t size = std::max<int64_t>(1, (kib << 8) / n) * n;
  const at::Tensor whole = at::full({size}, 1, at::kFloat);
  const at::Tensor part = at::full({size / n}, 1, at::kFloat);
  const auto measure = [&](const char* name,
                           const std::function<void()>& function) {
    Print(*group, kib, name, Measure(group, repeats, {function})[0]);
  };
  measure("all-reduce", [&] { group->AllReduce(whole)->Wait(); });
  measure("reduce-scatter", [&] { group->ReduceScatter(part, whole)->Wait(); });
  measure("all-gather", [&] { group->AllGather(whole, part)->Wait(); });
  if (all) measure("broadcast", [&] { group->Broadcast(whole, 0)->Wait(); });

  // As many bytes; sums across hosts are of float.
  const at::Tensor whole16 = at::full({2 * size}, 1, at::kBFloat16);
  const at::Tensor part16 = at::full({2 * size / n}, 1, at::kBFloat16);
  measure("all-reduce bf16", [&] { group->AllReduce(whole16)->Wait(); });
  measure("reduce-scatter bf16",
          [&] { group->ReduceScatter(part16, whole16)->Wait(); });

  if (!all) return;
  const auto both = [&] {
    const auto work = group->AllReduce(whole);
    Compute();
    work->Wait();
  };
  const std::vector<Cost> costs = Measure(group, 7, {Compute, both});
  Print(
      *group, kib, "beside computation",
      {costs[1].wall_ms - costs[0].wall_ms, costs[1].cpu_ms - costs[0].cpu_ms});
}

absl::Status Run(const RankInfo& info, const std::vector<int64_t>& sizes,
                 bool all) {
  at::set_num_threads(info.threads);
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<ProcessGroup> group,
                           CreateProcessGroup(info, 0));
  std::vector<double> few(8, 1.0);
  const auto sum_often = [&] {
    for (int i = 0; i < 1000; ++i) group->AllReduceHost(absl::MakeSpan(few));
  };
  if (all) {
    Print(*group, 0, "1,000 times 8 numbers",
          Measure(group.get(), 9, {sum_often})[0]);
  }
  for (const int64_t kib : sizes) MeasureSize(group.get(), kib, all);
  return absl::OkStatus();
}

// The numbers of "1,8,32", and KiB of "4k,1,8"; false when it isn't such a
// list.
bool Parse(const char* text, bool sizes, std::vector<int64_t>* numbers) {
  numbers->clear();
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const bool kib = sizes && absl::ConsumeSuffix(&part, "k");
    int64_t number = 0;
    if (!absl::SimpleAtoi(part, &number) || number < 1) return false;
    numbers->push_back(sizes && !kib ? number << 10 : number);
  }
  return true;
}

int RunRankOfEnvironment(const std::vector<int64_t>& sizes) {
  const absl::StatusOr<Place> place = FindPlace(LaunchSettings(), /*gpus=*/0);
  if (!place.ok() || place->forks) {
    fprintf(stderr, "collectives env: %s\n",
            place.ok() ? "RANK isn't set" : place.status().ToString().c_str());
    return 2;
  }
  return RunSingleRank(place->info, [&](const RankInfo& rank) {
    return Run(rank, sizes, /*all=*/false);
  });
}

int Main(int argc, char** argv) {
  std::vector<int64_t> ranks = {2, 4};
  std::vector<int64_t> sizes = {1 << 10, 8 << 10, 32 << 10, 128 << 10};
  const bool env = argc > 1 && std::string(argv[1]) == "env";
  if (argc > 3 || (argc > 1 && !env && !Parse(argv[1], false, &ranks)) ||
      (argc > 2 && !Parse(argv[2], true, &sizes))) {
    fprintf(stderr, "usage: collectives [RANKS,.. | env [MIB,..]]\n");
    return 2;
  }
  if (env) return RunRankOfEnvironment(sizes);
  printf(
      "| backend | ranks | MiB | collective | ms | ms of all cores | GB/s |\n"
      "|---|---|---|---|---|---|---|\n");
  fflush(stdout);
  for (const int64_t n : ranks) {
    const int exit_code = LaunchRanks(
        static_cast<int>(n),
        [&](const RankInfo& info) { return Run(info, sizes, /*all=*/true); });
    if (exit_code != 0) return exit_code;
  }
  return 0;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
