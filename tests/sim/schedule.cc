// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/schedule.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>

namespace capstan::sim {
namespace {

const char* const kNames[] = {
    "kill a rank",   "stop a rank",   "kill a launcher", "crash a host",
    "cut the power", "pause a host",  "cut a link",      "isolate a host",
    "fill a disk",   "slow a disk",   "break writes",    "set a clock",
    "stop the job",  "start it twice"};

std::string Seconds(Time time) {
  char text[32];
  snprintf(text, sizeof(text), "%.3f s", static_cast<double>(time) / 1e9);
  return text;
}

}  // namespace

std::string Fault::Text() const {
  std::ostringstream out;
  out << "at " << Seconds(at) << " " << kNames[kind] << ", host" << host;
  if (kind == kKillRank || kind == kStopRank) out << " rank " << other;
  if (kind == kPartition) out << " from host" << other;
  if (length > 0) out << ", for " << Seconds(length);
  return out.str();
}

std::string Schedule::Text() const {
  std::ostringstream out;
  out << "seed " << seed << ": " << hosts << " hosts of " << ranks_per_host
      << " ranks, " << steps << " steps, a checkpoint every " << save_every
      << ", keeps " << keep << ", " << max_restarts << " restarts"
      << (shrinks ? ", goes on with fewer hosts" : "")
      << (published ? ", meets by a file" : "") << "\n";
  for (const Fault& fault : faults) out << "  " << fault.Text() << "\n";
  return out.str();
}

Schedule MakeSchedule(uint64_t seed, int most_ranks) {
  Random random(seed * 0x9e3779b97f4a7c15u + 77);
  Schedule schedule;
  schedule.seed = seed;
  // Few hosts are simulated sooner, and find most.
  const int most_hosts = std::min(16, most_ranks);
  const int sizes[] = {1, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                       3, 3, 3, 3, 4, 4, 4, 5, 6, 8};
  schedule.hosts = random.OneIn(100) ? 16 : sizes[random.Below(20)];
  schedule.hosts = std::min(most_hosts, schedule.hosts);
  if (most_ranks > 64) schedule.hosts = 16 + random.Below(most_ranks / 16 - 15);
  const int per_host = std::max(1, most_ranks / schedule.hosts);
  schedule.ranks_per_host = static_cast<int>(
      random.Between(1, std::min(per_host, random.OneIn(4) ? 3 : 2)));
  if (most_ranks > 64) schedule.ranks_per_host = per_host;
  if (schedule.hosts == 1) schedule.ranks_per_host = std::min(2, per_host);
  schedule.steps = static_cast<int>(random.Between(3, 8));
  schedule.save_every = static_cast<int>(random.Between(1, 3));
  schedule.keep = static_cast<int>(random.Between(1, 3));
  schedule.max_restarts = random.OneIn(4) ? 0 : 3;
  schedule.shrinks = schedule.hosts > 1 && random.OneIn(2);
  schedule.published = random.OneIn(2);
  const int64_t count = random.OneIn(8) ? 0 : random.Between(1, 5);
  for (int64_t i = 0; i < count; ++i) {
    Fault fault;
    fault.kind = static_cast<Fault::Kind>(random.Below(Fault::kKinds));
    // Most of a run's life is its first second.
    fault.at =
        random.OneIn(3) ? random.Below(40 * kSecond) : random.Below(kSecond);
    fault.host = static_cast<int>(random.Below(schedule.hosts));
    fault.other = static_cast<int>(random.Below(fault.kind == Fault::kPartition
                                                    ? schedule.hosts
                                                    : schedule.ranks_per_host));
    fault.length = random.OneIn(3) ? random.Below(120 * kSecond)
                                   : random.Below(10 * kSecond);
    schedule.faults.push_back(fault);
  }
  std::sort(schedule.faults.begin(), schedule.faults.end(),
            [](const Fault& a, const Fault& b) { return a.at < b.at; });
  return schedule;
}

namespace {

// Outcomes travel as lines.
void Put(FILE* out, const Outcome& outcome) {
  fprintf(out, "%s\n%s\n%lu %ld %ld %d\n", outcome.kind.c_str(),
          outcome.violation.c_str(), outcome.trace, outcome.switches,
          outcome.length, outcome.jobs);
  for (const std::string& line : outcome.story)
    fprintf(out, "%s\n", line.c_str());
}

Outcome Get(const std::string& text) {
  Outcome outcome;
  std::istringstream in(text);
  std::getline(in, outcome.kind);
  std::getline(in, outcome.violation);
  std::string line;
  std::getline(in, line);
  sscanf(line.c_str(), "%lu %ld %ld %d", &outcome.trace, &outcome.switches,
         &outcome.length, &outcome.jobs);
  while (std::getline(in, line)) outcome.story.push_back(line);
  return outcome;
}

}  // namespace

Outcome PlayAlone(const Schedule& schedule, bool tell) {
  int ends[2];
  if (pipe(ends) != 0) abort();
  const pid_t child = fork();
  if (child == 0) {
    close(ends[0]);
    FILE* const out = fdopen(ends[1], "w");
    alarm(120);
    Put(out, Play(schedule, tell));
    fflush(out);
    _exit(0);
  }
  close(ends[1]);
  std::string text;
  char buffer[65536];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(n));
  }
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (status == 0) return Get(text);
  Outcome failed;
  failed.kind = WIFSIGNALED(status)
                    ? "signal " + std::to_string(WTERMSIG(status))
                    : "exit code";
  failed.violation = "the simulation itself ended by " + failed.kind;
  return failed;
}

Schedule Shrink(const Schedule& schedule, const std::string& kind,
                const std::function<Outcome(const Schedule&)>& play) {
  Schedule best = schedule;
  const auto keep_if_fails = [&](const Schedule& shorter) {
    if (play(shorter).kind != kind) return false;
    best = shorter;
    return true;
  };
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < best.faults.size();) {
      Schedule shorter = best;
      shorter.faults.erase(shorter.faults.begin() +
                           static_cast<std::ptrdiff_t>(i));
      if (keep_if_fails(shorter)) {
        again = true;
      } else {
        ++i;
      }
    }
  }
  for (int hosts = 1; hosts < best.hosts; ++hosts) {
    Schedule shorter = best;
    shorter.hosts = hosts;
    const bool fits = std::all_of(
        best.faults.begin(), best.faults.end(), [&](const Fault& fault) {
          return fault.host < hosts &&
                 (fault.kind != Fault::kPartition || fault.other < hosts);
        });
    if (fits && keep_if_fails(shorter)) break;
  }
  for (const int ranks : {1, 2}) {
    Schedule shorter = best;
    shorter.ranks_per_host = ranks;
    if (ranks < best.ranks_per_host && keep_if_fails(shorter)) break;
  }
  for (int steps = 2; steps < best.steps; ++steps) {
    Schedule shorter = best;
    shorter.steps = steps;
    if (keep_if_fails(shorter)) break;
  }
  return best;
}

}  // namespace capstan::sim
