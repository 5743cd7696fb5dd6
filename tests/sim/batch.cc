// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/batch.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "tests/sim/schedule.h"

namespace capstan::sim {
namespace {

// Schedules that a process plays before it ends.
constexpr int64_t kOfProcess = 100;
// Of one schedule, in real time; a thousand ranks take most of it.
constexpr unsigned kPatience = 600;

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
}

struct Worker {
  pid_t pid = 0;
  int fd = -1;
  uint64_t playing = 0;
  std::string text;
};

// Writes "SEED VIOLATION" lines: one before each schedule, without violation,
// and one after.
[[noreturn]] void Work(int fd, int64_t first, int64_t count, int ranks) {
  FILE* const out = fdopen(fd, "w");
  for (int64_t seed = first; seed < first + count; ++seed) {
    fprintf(out, "+%ld\n", seed);
    fflush(out);
    alarm(kPatience);
    const Outcome outcome =
        Play(MakeSchedule(static_cast<uint64_t>(seed), ranks), false);
    fprintf(out, "-%ld %s\n", seed, outcome.violation.c_str());
    fflush(out);
  }
  _exit(0);
}

class Batch {
 public:
  explicit Batch(const BatchOptions& options)
      : options_(options), next_(options.first) {}

  BatchResult Run();

 private:
  void Start();
  void Read(Worker* worker);
  void TakeLine(Worker* worker, const std::string& line);
  void Ended(const Worker& worker);
  bool Done() const {
    return next_ >= options_.first + options_.count ||
           static_cast<int>(result_.failures.size()) >=
               options_.most_failures ||
           Now() - begin_ > options_.seconds;
  }

  const BatchOptions options_;
  int64_t next_;
  const double begin_ = Now();
  std::vector<Worker> workers_;
  BatchResult result_;
};

void Batch::Start() {
  int ends[2];
  if (pipe(ends) != 0) abort();
  const int64_t count =
      std::min(kOfProcess, options_.first + options_.count - next_);
  const pid_t pid = fork();
  if (pid == 0) {
    close(ends[0]);
    Work(ends[1], next_, count, options_.ranks);
  }
  close(ends[1]);
  workers_.push_back({pid, ends[0], static_cast<uint64_t>(next_), ""});
  next_ += count;
}

void Batch::TakeLine(Worker* worker, const std::string& line) {
  const uint64_t seed = strtoull(line.c_str() + 1, nullptr, 10);
  worker->playing = seed;
  if (line[0] != '-') return;
  ++result_.played;
  const std::string violation = line.substr(line.find(' ') + 1);
  if (!violation.empty()) result_.failures.emplace_back(seed, violation);
}

void Batch::Ended(const Worker& worker) {
  int status = 0;
  waitpid(worker.pid, &status, 0);
  close(worker.fd);
  if (status == 0) return;
  result_.failures.emplace_back(
      worker.playing,
      "the simulation itself ended by status " + std::to_string(status));
}

void Batch::Read(Worker* worker) {
  char buffer[4096];
  const ssize_t n = read(worker->fd, buffer, sizeof(buffer));
  if (n <= 0) {
    Ended(*worker);
    worker->pid = 0;
    return;
  }
  worker->text.append(buffer, static_cast<size_t>(n));
  for (size_t end; (end = worker->text.find('\n')) != std::string::npos;) {
    TakeLine(worker, worker->text.substr(0, end));
    worker->text.erase(0, end + 1);
  }
}

BatchResult Batch::Run() {
  while (true) {
    while (!Done() && static_cast<int>(workers_.size()) < options_.jobs) {
      Start();
    }
    if (workers_.empty()) break;
    std::vector<pollfd> fds;
    for (const Worker& worker : workers_) fds.push_back({worker.fd, POLLIN, 0});
    poll(fds.data(), fds.size(), 1000);
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].revents != 0) Read(&workers_[i]);
    }
    workers_.erase(
        std::remove_if(workers_.begin(), workers_.end(),
                       [](const Worker& worker) { return worker.pid == 0; }),
        workers_.end());
  }
  result_.seconds = Now() - begin_;
  std::sort(result_.failures.begin(), result_.failures.end());
  return std::move(result_);
}

}  // namespace

BatchResult PlayMany(const BatchOptions& options) {
  // What libraries set up once is set up before there are other processes.
  Schedule calm;
  calm.hosts = 2;
  Play(calm, false);
  return Batch(options).Run();
}

}  // namespace capstan::sim
