// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/rank_process.h"

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/error_code.h"
#include "base/exit_codes.h"
#include "base/files.h"
#include "base/limits.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "cluster/launch/place.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

// Sent on a rank's report pipe, followed by the message.
struct ReportHeader {
  int32_t code;
  int32_t stop_signal;
  uint64_t message_size;
};

absl::Status SystemError(absl::string_view call) {
  return absl::ResourceExhaustedError(absl::StrCat(
      "can't start a rank: ", call, ": ", strerror(errno), LimitText(errno)));
}

void SetEnvironment(const RankInfo& info) {
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*replace=*/1);
  };
  set("RANK", absl::StrCat(info.rank));
  set("WORLD_SIZE", absl::StrCat(info.world_size));
  set("LOCAL_RANK", absl::StrCat(info.local_rank));
  set("LOCAL_WORLD_SIZE", absl::StrCat(info.local_world_size));
  // What rank 0 is still to publish would mislead.
  unsetenv("MASTER_ADDR");
  unsetenv("MASTER_PORT");
  if (!info.master_addr.empty()) set("MASTER_ADDR", info.master_addr);
  if (info.master_port > 0) set("MASTER_PORT", absl::StrCat(info.master_port));
  MarkInsideRank();
}

void BecomeRank(const RankInfo& info, Pipe& output) {
  // Ctrl-C at a terminal reaches only the parent, which forwards it.
  setpgid(0, 0);
  // "stty tostop" must not stop rank 0's progress bar.
  signal(SIGTTOU, SIG_IGN);
  dup2(output.write_end(), STDERR_FILENO);
  if (info.rank != 0) dup2(output.write_end(), STDOUT_FILENO);
  output.CloseWrite();
  SetEnvironment(info);
}

[[noreturn]] void Leave(const absl::Status& status, int report) {
  // Skip static destructors: they would act on copies of the parent's state,
  // and threads may still be running.
  fflush(nullptr);
  std::cout.flush();
  google::FlushLogFiles(google::INFO);
  // Any other UNAVAILABLE or ABORTED is this rank's own error.
  const bool own = (absl::IsUnavailable(status) && !IsLostPeer(status)) ||
                   (absl::IsAborted(status) && !IsRankHasLeft(status));
  const absl::StatusCode code =
      own ? absl::StatusCode::kUnknown : status.code();
  const std::string text = TextWithCode(status);
  const ReportHeader header = {static_cast<int32_t>(code), StopRequested(),
                               text.size()};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof(header));
  absl::StrAppend(&bytes, text);
  WriteAll(report, bytes);
  _exit(status.ok() ? 0 : 1);
}

// Whether the kernel has ended a process at its limit of CPU time.
bool UsedUpCpuTime(const ChildEnd& end) {
  const absl::optional<int64_t> most = MostCpuSeconds();
  return most.has_value() && end.cpu_seconds + 1 >= *most;
}

// A rank that ended without a report.
RankOutcome Death(const ChildEnd& end) {
  RankOutcome died;
  died.kind = RankOutcome::kDied;
  if (end.signal > 0) {
    died.message = absl::StrCat("killed by signal ", end.signal, " (",
                                SignalName(end.signal), ")");
    died.how = absl::StrCat("was ", died.message);
    if (end.signal == SIGKILL && UsedUpCpuTime(end)) {
      absl::StrAppend(&died.message, ": ", CpuLimitText(), " are used up");
    } else if (end.signal == SIGKILL) {
      absl::StrAppend(&died.message, ": the system may be out of memory");
    }
    return died;
  }
  died.exit_code = end.code;
  if (died.exit_code == kHungExitCode) {
    died.message = "ended by the watchdog: the run did not go on";
    died.how = "was ended by the watchdog";
  } else if (!end.known()) {
    died.message = end.Text();
    died.how = "ended";
  } else {
    died.how = absl::StrCat("ended with exit code ", died.exit_code);
    died.message = absl::StrCat(died.how, " in the midst of the run");
  }
  return died;
}

}  // namespace

absl::Status CallRankMain(const RankMain& rank_main, const RankInfo& info) {
  try {
    return rank_main(info);
  } catch (...) {
    return CurrentExceptionToStatus();
  }
}

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Start(
    const RankInfo& info, const std::function<void()>& before,
    const RankMain& rank_main) {
  Pipe output;
  Pipe report;
  if (!output.ok() || !report.ok()) return SystemError("pipe");
  // Only the parent's ends: a rank's writes to standard error may block.
  for (const Pipe* pipe : {&output, &report}) {
    fcntl(pipe->read_end(), F_SETFL, O_NONBLOCK);
  }
  const pid_t pid = Fork();
  if (pid < 0) return SystemError("fork");
  if (pid == 0) {
    output.CloseRead();
    report.CloseRead();
    BecomeRank(info, output);
    InstallStopHandlers(SecondSignal::kIgnored);
    if (info.nodes > 1) EndBeforeRanksHaveMet();
    before();
    Leave(CallRankMain(rank_main, info), report.write_end());
  }
  return std::unique_ptr<RankProcess>(
      new RankProcess(pid, output.ReleaseRead(), report.ReleaseRead(),
                      absl::StrCat("[rank ", info.rank, "] ")));
}

RankProcess::~RankProcess() { CloseInChild(); }

void RankProcess::CloseInChild() const {
  if (output_fd_ >= 0) close(output_fd_);
  if (report_fd_ >= 0) close(report_fd_);
}

std::string RankProcess::ReadOutput() {
  if (output_fd_ < 0) return "";
  std::string bytes;
  const bool open = ReadAvailable(output_fd_, &bytes);
  std::string lines = lines_.Add(bytes);
  if (!open) {
    absl::StrAppend(&lines, lines_.Finish());
    close(output_fd_);
    output_fd_ = -1;
  }
  return lines;
}

void RankProcess::ReadReport() {
  if (report_fd_ >= 0 && !ReadAvailable(report_fd_, &report_)) {
    close(report_fd_);
    report_fd_ = -1;
  }
}

void RankProcess::Reap() {
  if (exited() || !(end_ = WaitFor(pid_, 0)).has_value()) return;
  // It reported before exiting.
  ReadReport();
}

void RankProcess::WaitForExit() {
  if (!exited()) end_ = WaitFor(pid_);
}

std::string RankProcess::Drain() {
  std::string all;
  // Don't wait for end of file: a process started by the rank may hold the pipe
  // open for ever.
  for (bool more = output_fd_ >= 0; more;) {
    std::string bytes;
    more = ReadAvailable(output_fd_, &bytes) && !bytes.empty();
    absl::StrAppend(&all, lines_.Add(bytes));
  }
  absl::StrAppend(&all, lines_.Finish());
  return all;
}

void RankProcess::Signal(int signal) const {
  if (!exited()) kill(pid_, signal);
}

void RankProcess::Kill() const {
  // Its process group has its number (BecomeRank), also when it has exited.
  kill(-pid_, SIGKILL);
  Signal(SIGKILL);
}

bool RankProcess::IsFrozen() const {
  if (exited()) return false;
  const absl::StatusOr<std::string> stat =
      ReadWholeFile(absl::StrCat("/proc/", pid_, "/stat"));
  if (!stat.ok()) return false;
  // "PID (NAME) STATE .."; the name may hold anything.
  const size_t end = stat->rfind(") ");
  return end != std::string::npos && stat->substr(end + 2, 1) == "T";
}

absl::optional<RankOutcome> RankProcess::ReportedOutcome() const {
  ReportHeader header;
  if (report_.size() < sizeof(header)) return absl::nullopt;
  memcpy(&header, report_.data(), sizeof(header));
  if (report_.size() < sizeof(header) + header.message_size) {
    return absl::nullopt;
  }
  RankOutcome outcome;
  outcome.message = report_.substr(sizeof(header), header.message_size);
  switch (static_cast<absl::StatusCode>(header.code)) {
    case absl::StatusCode::kOk:
      outcome.kind = RankOutcome::kOk;
      break;
    case absl::StatusCode::kCancelled:
      outcome.kind = RankOutcome::kStopped;
      outcome.stop_signal = header.stop_signal;
      break;
    case absl::StatusCode::kAborted:
      outcome.kind = RankOutcome::kLeft;
      break;
    case absl::StatusCode::kUnavailable:
      outcome.kind = RankOutcome::kLostPeer;
      break;
    default:
      outcome.kind = RankOutcome::kFailed;
  }
  if (outcome.kind != RankOutcome::kOk && outcome.message.empty()) {
    outcome.message =
        absl::StatusCodeToString(static_cast<absl::StatusCode>(header.code));
  }
  return outcome;
}

absl::optional<RankOutcome> RankProcess::Outcome() const {
  const absl::optional<RankOutcome> reported = ReportedOutcome();
  if (reported.has_value()) return reported;
  if (!exited()) return absl::nullopt;
  // EndBeforeRanksHaveMet.
  for (const int signal : kStopSignals) {
    if (end_->code == 128 + signal) {
      RankOutcome stopped;
      stopped.kind = RankOutcome::kStopped;
      stopped.message = "stopped before the ranks had met";
      stopped.stop_signal = signal;
      return stopped;
    }
  }
  return Death(*end_);
}

}  // namespace capstan
