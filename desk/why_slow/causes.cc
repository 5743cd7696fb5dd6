// SPDX-License-Identifier: Apache-2.0
#include "desk/why_slow/causes.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "trainer/metrics/console.h"

namespace capstan::why_slow {
namespace {

// Less isn't worth a line.
constexpr double kLeastShare = 0.02;
// What is due now and then should cost no more.
constexpr double kFairShare = 0.05;

std::string Percent(double part, double whole) {
  return absl::StrFormat("%.0f %%", 100.0 * part / std::max(whole, 1e-12));
}

double Action(const Times& times, const std::string& name) {
  const auto found = times.actions.find(name);
  return found == times.actions.end() ? 0.0 : found->second;
}

Times PerStep(const RankRecord& rank) {
  Times without_first = rank.early;
  without_first.Add(rank.later);
  return MeanPerStep(rank.lines, rank.all, without_first);
}

// The next of 1, 2, 5, 10, 20, .. that isn't smaller.
int64_t RoundUp(double number) {
  for (int64_t power = 1;; power *= 10) {
    for (const int64_t digit : {1, 2, 5}) {
      if (static_cast<double>(digit * power) >= number) return digit * power;
    }
  }
}

class Judge {
 public:
  Judge(const SpeedRecord& run, const Summary& summary)
      : run_(run), summary_(summary), wall_(summary.wall) {}

  std::vector<Cause> Find() {
    if (OnlyFinalEvaluation(run_) == 0.0) {
      Rarer("evaluation", "eval_every", run_.settings.eval_every,
            {"evaluation"},
            "eval_batches measures on less; eval_data of fewer rows does, too");
      Rarer("sampling", "eval_every", run_.settings.eval_every, {"sampling"},
            "fewer train.sample_prompts, or a smaller max_new_tokens of the "
            "objective, take less");
    }
    Rarer("saving", "save_every", run_.settings.save_every,
          {"saving", "saving the best"},
          run_.settings.saves_in_foreground
              ? "saving: BACKGROUND writes while training goes on"
              : "a faster disk under output_dir shortens each");
    if (on_cpu()) {
      TooManyThreads();
      Steal();
    }
    LateRank();
    if (!crowded_ && on_cpu()) Host();
    ColdStart();
    Data();
    Communication();
    SmallBatch();
    OddShape();
    std::vector<Cause> found;
    for (Cause& cause : causes_) {
      if (cause.gain >= kLeastShare * wall_) found.push_back(std::move(cause));
    }
    std::stable_sort(
        found.begin(), found.end(),
        [](const Cause& a, const Cause& b) { return a.gain > b.gain; });
    return found;
  }

 private:
  bool on_cpu() const { return run_.ranks.front().device == "CPU"; }
  const Times& mean() const { return summary_.mean; }
  std::string Of(double seconds) const {
    return absl::StrCat(ShortDuration(seconds), " (", Percent(seconds, wall_),
                        ")");
  }
  void Add(Cause cause) { causes_.push_back(std::move(cause)); }

  // What happens every so many steps, and takes more than its share.
  void Rarer(const std::string& name, const std::string& field, double every,
             const std::vector<std::string>& actions,
             const std::string& otherwise) {
    double seconds = 0.0;
    for (const std::string& action : actions) {
      seconds += Action(mean(), action);
    }
    const double others = wall_ - seconds;
    if (every <= 0.0 || seconds <= kFairShare * wall_ || others <= 0.0) return;
    const int64_t times = RoundUp(seconds / (kFairShare * others));
    Add({name,
         absl::StrCat(
             "it takes ", Of(seconds), " of each step's time",
             every == 1.0
                 ? ", as it is done after each"
                 : absl::StrCat(": ", ShortDuration(seconds * every), " every ",
                                static_cast<int64_t>(every), " steps")),
         absl::StrCat("train.", field, ": ",
                      static_cast<int64_t>(every) * times, "; ", otherwise),
         seconds * (1.0 - 1.0 / static_cast<double>(times))});
  }

  // Threads of the ranks of a host, over its cores.
  void TooManyThreads() {
    std::map<std::string, std::pair<double, double>> hosts;
    double crowd = 1.0, threads = 0.0, cores = 0.0;
    const auto look = [&](double has, double may_use) {
      if (has / may_use <= crowd) return;
      crowd = has / may_use;
      threads = has;
      cores = may_use;
    };
    for (const RankRecord& rank : run_.ranks) {
      if (rank.bound) look(rank.threads, rank.cores);
      auto& [of_host, has] = hosts[rank.host];
      of_host += rank.threads;
      has = std::max(has, rank.cores);
      if (!rank.bound) look(of_host, has);
    }
    if (crowd <= 1.0) return;
    crowded_ = true;
    // If the cores did what all threads do now without getting in each other's
    // way; the threads' waits for each other are in that, too.
    const auto ranks = static_cast<double>(RanksOfAHost());
    const double fitting = mean().cpu_seconds * ranks /
                           (run_.ranks.front().bound ? ranks * cores : cores);
    const double lost = std::max(0.0, summary_.most_own - fitting);
    Add({"too many threads",
         absl::StrFormat("%.0f threads compute on %.0f cores: a rank works %s "
                         "a step for what those cores could do in %s",
                         threads, cores, ShortDuration(summary_.most_own),
                         ShortDuration(fitting)),
         absl::StrCat("OMP_NUM_THREADS=",
                      std::max<int64_t>(1, static_cast<int64_t>(cores / ranks)),
                      ", or fewer ranks"),
         lost});
  }

  size_t RanksOfAHost() const {
    std::map<std::string, size_t> ranks;
    size_t most = 0;
    for (const RankRecord& rank : run_.ranks) {
      most = std::max(most, ++ranks[rank.host]);
    }
    return most;
  }

  void Steal() {
    double cpu = 0.0;
    for (const RankRecord& rank : run_.ranks) {
      if (rank.host == run_.ranks.front().host) {
        cpu += rank.all.cpu_seconds / rank.all.steps;
      }
    }
    const double steal = mean().steal_seconds;
    if (steal <= 0.0) return;
    const double computing =
        mean().forward + mean().backward + mean().optimizer;
    Add({"steal",
         absl::StrFormat("the hypervisor gave the host's cores to others for "
                         "%s of each step, while the ranks had them for %s",
                         ShortDuration(steal), ShortDuration(cpu)),
         "a machine, or an instance type, whose cores aren't shared",
         std::min(steal, computing * steal / (steal + cpu))});
  }

  // Why the rank has more work: the phase with most of the difference, and
  // whether it had a core.
  std::pair<std::string, std::string> WhyLate(const Times& late,
                                              const Times& other) const {
    const double gap = late.own() - other.own();
    const double off = late.off_core - other.off_core;
    const double waited = late.runqueue_seconds - other.runqueue_seconds;
    if (off >= 0.5 * gap && waited >= 0.5 * off) {
      return {absl::StrCat("its core is taken by others: it waited ",
                           ShortDuration(waited), " for one"),
              "end what else runs on that host, or bind the rank to other "
              "cores (launch.binding)"};
    }
    if (off >= 0.5 * gap) {
      return {absl::StrCat("it had no core for ", ShortDuration(off),
                           ": it was stopped, or waited for memory from a "
                           "disk (",
                           absl::StrFormat("%.0f", late.major_faults),
                           " major faults a step)"),
              "see what stops it, and whether that host's memory suffices"};
    }
    const std::pair<const char*, double> phases[] = {
        {"data", late.data - other.data},
        {"forward", late.forward - other.forward},
        {"backward", late.backward - other.backward},
        {"optimizer", late.optimizer - other.optimizer},
        {"rest", late.rest - other.rest}};
    const auto most = std::max_element(
        std::begin(phases), std::end(phases),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    if (std::string(most->first) == "data") {
      return {absl::StrCat("it waits for its data, ",
                           ShortDuration(most->second), " longer"),
              "copy the data to a disk of that host, and compare the hosts "
              "with `trainer doctor`"};
    }
    return {absl::StrCat("most of it in ", most->first, ", ",
                         ShortDuration(most->second),
                         ", with a core all the time: that core is slower"),
            "compare the hosts with `trainer doctor`; leave that one out"};
  }

  void LateRank() {
    const size_t ranks = run_.ranks.size();
    const double gain = summary_.most_own - summary_.next_own;
    if (ranks < 2 || gain < kFairShare * wall_) return;
    const RankRecord& late = run_.ranks[summary_.latest];
    Times other;  // the next
    for (size_t i = 0; i < ranks; ++i) {
      const Times times = PerStep(run_.ranks[i]);
      if (i != summary_.latest && times.own() >= other.own()) other = times;
    }
    const auto [why, advice] = WhyLate(PerStep(late), other);
    Add({"late rank",
         absl::StrCat("rank ", late.rank, " on ", late.host, " works ",
                      ShortDuration(summary_.most_own), " a step, the next ",
                      ShortDuration(summary_.next_own),
                      ", and all wait for it; ", why),
         advice, gain});
  }

  // Other processes on the cores of all ranks.
  void Host() {
    // Of the rank that has least of it; a late one's more is told there.
    double crowded = wall_, off_core = wall_;
    for (const RankRecord& rank : run_.ranks) {
      const Times times = PerStep(rank);
      off_core = std::min(off_core, times.off_core);
      crowded = std::min({crowded, off_core, times.runqueue_seconds});
    }
    const double stopped = off_core - crowded;
    const auto ranks = static_cast<double>(RanksOfAHost());
    const bool fewer_ranks = ranks > 1.0 && ranks >= run_.ranks.front().cores;
    Add({"host",
         absl::StrCat("the ranks were ready but had no core for ", Of(crowded),
                      " of each step: other processes run on it"),
         fewer_ranks ? "end them, or give the run fewer ranks than cores"
                     : "end them, or take another host",
         crowded});
    if (stopped < kFairShare * wall_) return;
    Add({"stopped",
         absl::StrCat("the ranks had no core for ", Of(stopped),
                      " of each step, and weren't waiting for one: they were "
                      "stopped, or waited for memory from a disk (",
                      absl::StrFormat("%.1f", mean().major_faults),
                      " major faults a step)"),
         mean().major_faults >= 1.0
             ? "more memory, or a smaller model or batch: `trainer plan`"
             : "see what stops them (a limit of CPU time of its container?)",
         stopped});
  }

  // Waits for batches, but for those of a late rank alone. What is only at the
  // beginning, with reads, is a cold cache.
  void Data() {
    double least = mean().data;
    for (const RankRecord& rank : run_.ranks) {
      least = std::min(least, PerStep(rank).data);
    }
    double early = 0.0, early_bytes = 0.0;
    EarlyReads(&early, &early_bytes);
    if (early > 0.0) {
      Add({"cold cache",
           absl::StrFormat("at the beginning the run waited %s for data that "
                           "weren't in memory yet (%s read); later it doesn't",
                           ShortDuration(early * summary_.run_steps),
                           ShortBytes(static_cast<int64_t>(early_bytes))),
           "nothing in a long run; for many short ones read the data before "
           "(cat FILE > /dev/null), or keep them on a faster disk",
           early});
      least = std::max(0.0, least - early);
    }
    const bool reads = mean().read_bytes > 0.0 || mean().iowait_seconds > 0.0;
    Add({"data",
         absl::StrCat(
             "each step waits ", Of(least), " for its batches",
             reads ? absl::StrFormat(
                         "; %s are read from disk a step, and the host's cores "
                         "waited %s for disks",
                         ShortBytes(static_cast<int64_t>(mean().read_bytes)),
                         ShortDuration(mean().iowait_seconds))
                   : "; nothing is read from disk: making them is what takes "
                     "long"),
         reads ? "a faster disk, or a copy of the data on one of this host"
               : "tokenize once, before training (`trainer tokenize`), or use "
                 "more cores",
         least});
  }

  // Reads before the first step, which a second run finds in memory.
  void ColdStart() {
    double waited = 0.0, bytes = 0.0;
    for (const RankRecord& rank : run_.ranks) {
      waited = std::max(waited, rank.ready_seconds - rank.ready_cpu_seconds);
      bytes = std::max(bytes, rank.ready_read_bytes);
    }
    constexpr double kMuch = 16e6;
    if (bytes < kMuch) return;
    Add({"cold cache",
         absl::StrFormat("before the first step the run waited %s, while %s "
                         "were read from a disk",
                         ShortDuration(waited),
                         ShortBytes(static_cast<int64_t>(bytes))),
         "nothing in a long run; for many short ones read the files before "
         "(cat FILE > /dev/null), or keep them on a faster disk",
         waited / summary_.run_steps});
  }

  // Seconds per step that the first half of the lines waited for data beyond
  // what the second half does, if they read from a disk.
  void EarlyReads(double* seconds, double* bytes) const {
    const RankRecord& rank = run_.ranks.front();
    if (rank.lines < 4) return;
    Times early = rank.first;
    early.Add(rank.early);
    const double steady = rank.later.data / std::max(rank.later.steps, 1.0);
    const double more = early.data - steady * early.steps;
    const double read = early.read_bytes;
    if (more < 0.5 * rank.all.data || read <= 4.0 * rank.later.read_bytes ||
        read <= 0.0) {
      return;
    }
    *seconds = more / rank.all.steps;
    *bytes = read;
  }

  void Communication() {
    const double seconds = summary_.communication;
    if (run_.ranks.size() < 2) return;
    std::map<std::string, int> hosts;
    for (const RankRecord& rank : run_.ranks) ++hosts[rank.host];
    Add({"communication",
         absl::StrFormat(
             "even the rank that waits least waits %s for collectives, in "
             "which rank 0 sends %s: %s/s %s",
             Of(seconds), ShortBytes(static_cast<int64_t>(run_.bytes_sent)),
             ShortBytes(static_cast<int64_t>(run_.bytes_sent /
                                             std::max(seconds, 1e-9))),
             hosts.size() > 1 ? "between hosts" : "within the host"),
         "a faster link (`trainer doctor` measures it), gradients in bf16, or "
         "a larger global batch, which communicates once for more tokens",
         seconds});
  }

  // What a larger batch doesn't make longer: the update, communication and what
  // is between phases.
  double PerStepSeconds() const {
    double between = mean().outside;
    for (const auto& [name, seconds] : mean().actions) between -= seconds;
    return mean().optimizer + mean().rest + summary_.communication +
           std::max(0.0, between);
  }

  // Micro-batches of a rank's step; 1 where the config doesn't tell.
  double Accumulation() const {
    const Settings& settings = run_.settings;
    const double at_once = settings.micro_batch_size *
                           static_cast<double>(run_.ranks.size()) /
                           settings.sequence_parallel;
    return at_once <= 0.0
               ? 1.0
               : std::max(1.0, std::ceil(settings.global_batch_size / at_once));
  }

  // A larger micro-batch does the same tokens in fewer products: first by less
  // accumulation, then in fewer steps.
  void SmallBatch() {
    const double micro = run_.settings.micro_batch_size;
    const double accumulation = Accumulation();
    const double rows =
        run_.tokens / static_cast<double>(run_.ranks.size()) / accumulation;
    if (run_.unit != "tokens" || micro <= 0.0 || rows <= 0.0) return;
    const double computing = mean().forward + mean().backward;
    const double per_step = PerStepSeconds();
    // Products of few rows read the weights for little work: their time is as
    // that of so many rows more, as measured on two models (docs/why_slow.md).
    constexpr double kRows = 12.0;
    constexpr double kEnough = 512.0;
    const double times =
        static_cast<double>(RoundUp(kEnough / std::max(rows, 1.0)));
    if (times <= 1.0) return;
    const double faster = computing * (1.0 - (1.0 + kRows / (rows * times)) /
                                                 (1.0 + kRows / rows));
    const double fewer_steps = std::max(1.0, times / accumulation);
    const double gain = per_step * (1.0 - 1.0 / fewer_steps) + faster;
    const std::string in_a_step =
        accumulation > 1.0
            ? absl::StrFormat("at once, %.0f times a step", accumulation)
            : "in a step";
    Add({"small batch",
         absl::StrFormat("a rank computes only %.0f tokens %s, of whose time "
                         "%s is the same for any number of them",
                         rows, in_a_step, Of(per_step)),
         absl::StrFormat("batch.micro_batch_size: %.0f instead of %.0f, as far "
                         "as memory and learning allow; the gain is for the "
                         "same tokens in %s",
                         micro * times, micro,
                         fewer_steps > 1.0 ? "fewer steps"
                                           : "the same steps, which accumulate "
                                             "over fewer micro-batches"),
         gain});
  }

  // Widths that don't fill the registers' lanes cost as much as the next that
  // does. `power`: of a product's time, of the whole in a usual decoder.
  void OddShape() {
    constexpr int64_t kLanes = 16;
    const std::map<std::string, double> powers = {{"hidden_size", 4.0 / 3.0},
                                                  {"intermediate_size", 0.67},
                                                  {"vocab_size", 0.2}};
    std::string odd, even;
    double left = 1.0;  // of computing
    for (const auto& [name, width] : run_.settings.widths) {
      const int64_t below = std::max(width / kLanes, int64_t{1}) * kLanes;
      const int64_t above = (width + kLanes - 1) / kLanes * kLanes;
      if (above == width) continue;
      const char* const comma = odd.empty() ? "" : ", ";
      absl::StrAppend(&odd, comma, name, " ", width, " costs what ", above,
                      " does");
      absl::StrAppend(&even, comma, name, " ", below, " or ", above);
      left *= std::pow(static_cast<double>(below) / static_cast<double>(above),
                       powers.at(name));
    }
    if (odd.empty()) return;
    Add({"odd shape",
         absl::StrCat(odd, on_cpu() ? ": vectors have 16 numbers"
                                    : ": tensor cores' tiles have 16 numbers"),
         absl::StrCat(even, " (the gain is for the smaller)"),
         (1.0 - left) * (mean().forward + mean().backward)});
  }

  const SpeedRecord& run_;
  const Summary& summary_;
  const double wall_;
  bool crowded_ = false;
  std::vector<Cause> causes_;
};

}  // namespace

Summary Summarize(const SpeedRecord& run) {
  Summary summary;
  const auto ranks = static_cast<double>(run.ranks.size());
  summary.run_steps = run.ranks.front().all.steps;
  for (size_t i = 0; i < run.ranks.size(); ++i) {
    Times times = PerStep(run.ranks[i]);
    const double own = times.own();
    if (i == 0 || own > summary.most_own) {
      summary.next_own = i == 0 ? 0.0 : summary.most_own;
      summary.most_own = own;
      summary.latest = i;
    } else {
      summary.next_own = std::max(summary.next_own, own);
    }
    summary.communication =
        i == 0 ? times.exposed : std::min(summary.communication, times.exposed);
    summary.wall += times.wall() / ranks;
    summary.mean.Add(times);
  }
  summary.mean.Divide(ranks);
  return summary;
}

double OnlyFinalEvaluation(const SpeedRecord& run) {
  const RankRecord& rank = run.ranks.front();
  const double every = run.settings.eval_every;
  const double last = rank.first_step + rank.all.steps;
  if (every <= 0.0 ||
      std::floor(last / every) > std::floor(rank.first_step / every)) {
    return 0.0;
  }
  return Action(rank.all, "evaluation") + Action(rank.all, "sampling");
}

std::vector<Cause> FindCauses(const SpeedRecord& run, const Summary& summary) {
  return Judge(run, summary).Find();
}

}  // namespace capstan::why_slow
