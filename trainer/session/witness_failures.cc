// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/witness_failures.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/launch/network.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/event_log.h"
#include "trainer/session/slow_hosts.h"

namespace capstan {
namespace {

// Of failures that are told one by one, in a step of a rank.
constexpr size_t kMostTold = 5;

// Of rank 0: HostFailures::Text.
std::string HostsFile(const Session& session) {
  return session.output_dir + "/.witness";
}

}  // namespace

WitnessFailures::WitnessFailures(Session* session)
    : session_(*session),
      host_(HostName()),
      hosts_(session_.config.train().witness()) {}

absl::Status WitnessFailures::Begin() {
  const bool goes_on = session_.first_step > 0 || session_.Restarted();
  if (!hosts_.counts() || !goes_on) return absl::OkStatus();
  const absl::StatusOr<std::string> mine =
      session_.group->rank() == 0 ? ReadWholeFile(HostsFile(session_)) : "";
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string text,
      FromRank0(*session_.group, mine.ok() ? *mine : std::string()));
  hosts_.Restore(text);
  return absl::OkStatus();
}

void WitnessFailures::Add(Blame blame, std::string text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  texts_.push_back(std::move(text));
  blames_.insert(std::move(blame));
}

absl::Status WitnessFailures::Tell(int64_t step, bool lost) {
  std::vector<double> counts = {0.0, lost ? 1.0 : 0.0};
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts[0] = static_cast<double>(texts_.size());
  }
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    session_.group->AllReduceHost(absl::MakeSpan(counts));
    return absl::OkStatus();
  }));
  latest_ = static_cast<int64_t>(counts[0]);
  if (latest_ == 0) return absl::OkStatus();
  all_ += latest_;
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<Told> all, FromAll());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    for (const std::string& text : all[rank].texts) {
      session_.Note(absl::StrCat("witness: step ", step, ", rank ", rank,
                                 " on host ", all[rank].host, ": ", text),
                    kWitnessEvent);
    }
  }
  CAPSTAN_RETURN_IF_ERROR(Judge(all, step));
  if (counts[1] == 0.0) return absl::OkStatus();
  const absl::Status changed = absl::DataLossError(
      absl::StrCat("step ", step,
                   ": the run's weights or optimizer state are wrong, and "
                   "can't be mended (the lines before say why)"));
  if (session_.config.launch().max_restarts() == 0) return changed;
  // Only a rank that dies is started again, from the mirror or a checkpoint.
  Console(STDERR_FILENO).Write(absl::StrCat(changed.message(), "\n"));
  _exit(1);
}

// "host\tnode\tN", the ranks to blame for N events, sentences.
absl::StatusOr<std::vector<WitnessFailures::Told>> WitnessFailures::FromAll() {
  std::vector<std::string> texts;
  std::set<Blame> blames;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts.swap(texts_);
    blames.swap(blames_);
  }
  std::string mine =
      absl::StrCat(host_, "\t", session_.rank.node_rank, "\t", blames.size());
  for (const Blame& blame : blames) absl::StrAppend(&mine, "\t", blame.rank);
  for (size_t i = 0; i < std::min(texts.size(), kMostTold); ++i) {
    absl::StrAppend(&mine, "\t", texts[i]);
  }
  if (texts.size() > kMostTold) {
    absl::StrAppend(&mine, "\tand ", texts.size() - kMostTold, " more");
  }
  std::vector<std::string> lines;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    lines = FromAllRanks(*session_.group, mine);
    return absl::OkStatus();
  }));
  std::vector<Told> all;
  for (const std::string& line : lines) {
    const std::vector<std::string> parts = absl::StrSplit(line, '\t');
    Told told;
    size_t count = 0;
    if (parts.size() < 3 || !absl::SimpleAtoi(parts[1], &told.node) ||
        !absl::SimpleAtoi(parts[2], &count) || count > parts.size() - 3) {
      return absl::InternalError(
          absl::StrCat("a rank's failures aren't readable: \"", line, "\""));
    }
    told.host = parts[0];
    told.blamed.assign(parts.begin() + 3, parts.begin() + 3 + count);
    told.texts.assign(parts.begin() + 3 + count, parts.end());
    all.push_back(std::move(told));
  }
  return all;
}

absl::Status WitnessFailures::Judge(const std::vector<Told>& all,
                                    int64_t step) {
  if (!hosts_.counts()) return absl::OkStatus();
  // What several ranks say of one's messages is one event.
  std::map<size_t, size_t> of_rank;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::map<size_t, size_t> counts;
    for (const std::string& text : all[rank].blamed) {
      int64_t blamed = -1;
      if (absl::SimpleAtoi(text, &blamed) && blamed >= 0) ++counts[blamed];
    }
    for (const auto& [blamed, count] : counts) {
      of_rank[blamed] = std::max(of_rank[blamed], count);
    }
  }
  const Told* worst = nullptr;
  for (const auto& [rank, count] : of_rank) {
    if (rank >= all.size()) continue;
    if (hosts_.Add(all[rank].host, count, step)) worst = &all[rank];
  }
  // Where it can't be written, the ranks begin to count anew.
  if (session_.group->rank() == 0) {
    ReplaceFile(HostsFile(session_), hosts_.Text()).IgnoreError();
  }
  // None may end itself before, which would end the others.
  CAPSTAN_RETURN_IF_ERROR(
      Agree(*session_.group, absl::OkStatus(), "note the failures of a host"));
  return worst == nullptr ? absl::OkStatus()
                          : LeaveOut(worst->host, worst->node);
}

// All ranks come here.
absl::Status WitnessFailures::LeaveOut(const std::string& host, int node) {
  const Witness& settings = session_.config.train().witness();
  const std::string what = absl::StrCat(
      "host ", host, " has had ", settings.most_failures(),
      " failures or more that the witness saw (train.witness.most_failures)");
  LeaveOutHost(session_, host, node, what, kWitnessEvent);
  return absl::FailedPreconditionError(absl::StrCat(
      what,
      ": have its processors and memory examined; `trainer` with the "
      "same config goes on from the last checkpoint on another one"));
}

}  // namespace capstan
