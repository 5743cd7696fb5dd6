// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/rank.h"

#include <ATen/ops/zeros.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/exit_codes.h"
#include "base/lost_peer.h"
#include "base/status.h"
#include "cluster/comm/agree.h"
#include "cluster/comm/hosts/hosts_group.h"
#include "cluster/comm/single_group.h"
#include "cluster/launch/launcher.h"
#include "cluster/launch/progress.h"
#include "cluster/meet/rendezvous.h"
#include "host/config/run_config.pb.h"
#include "tests/sim/ledger.h"
#include "tests/sim/wire.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/checkpoint/mirror_link.h"
#include "trainer/checkpoint/save.h"
#include "trainer/session/held_folder.h"
#include "trainer/session/output_folder.h"

namespace capstan::sim {
namespace {

constexpr int64_t kElements = 64;

// A rank's part of a model of one parameter.
struct Part {
  std::vector<ParameterSpec> specs = {{"w", {kElements}, 0, true, {}}};
  std::vector<OptimizerShard> shards;
  std::vector<std::vector<at::Tensor>> state;
  std::vector<OwnedSlice> owned;
  int64_t begin = 0;
  int64_t count = 0;

  Part(int rank, int size) {
    begin = kElements * rank / size;
    count = kElements * (rank + 1) / size - begin;
    OptimizerShard shard;
    shard.master = at::zeros({count}, at::kFloat);
    shard.gradient = at::zeros({count}, at::kFloat);
    if (count > 0) shard.ranges.push_back({0, begin, count, 0});
    shards.push_back(shard);
    state.push_back({at::zeros({count}, at::kFloat)});
    owned = {{0, 0, count}};
  }
  float* values() { return shards[0].master.data_ptr<float>(); }

  CheckpointParts Parts(ProcessGroup& group) {
    CheckpointParts parts;
    parts.specs = &specs;
    parts.shards = absl::MakeSpan(shards);
    parts.state = &state;
    parts.state_shapes = {{{"exp_avg"}, {}}};
    parts.owned = owned;
    parts.group = &group;
    parts.config_text = "name: \"sim\"\n";
    return parts;
  }
};

class Rank {
 public:
  Rank(const RankInfo& info, const Schedule& schedule, int job)
      : info_(info), schedule_(schedule), job_(job) {}
  ~Rank() { TheLedger()->LeftGroup(); }

  absl::Status Run();

 private:
  absl::Status Join();
  absl::Status WatchNext();
  absl::Status Hold();
  absl::Status Restore();
  absl::Status Step();
  absl::Status Save();

  const RankInfo info_;
  const Schedule& schedule_;
  const int job_;
  absl::optional<Meeting> meeting_;
  std::unique_ptr<ProcessGroup> group_;
  std::unique_ptr<MirrorServer> server_;
  std::unique_ptr<MirrorSender> sender_;
  HeldFolder held_;
  std::unique_ptr<Part> part_;
  TrainState state_;
};

absl::Status Rank::Join() {
  if (info_.world_size == 1) {
    group_ = CreateSingleGroup(at::kCPU);
    return absl::OkStatus();
  }
  CAPSTAN_ASSIGN_OR_RETURN(meeting_, Meet(info_));
  try {
    CAPSTAN_ASSIGN_OR_RETURN(group_, CreateHostsGroup(info_, meeting_->store,
                                                      WireConnect(*meeting_)));
  } catch (...) {
    return CouldNotMeet(info_);
  }
  MayLeave(*meeting_);
  return absl::OkStatus();
}

// As RunMirror does it: who sends mirrors to the next host notices its silence.
absl::Status Rank::WatchNext() {
  if (info_.nodes == 1 || schedule_.max_restarts == 0) return absl::OkStatus();
  MirrorServer::Options options;
  options.host = meeting_->host_address;
  absl::StatusOr<std::unique_ptr<MirrorServer>> server =
      MirrorServer::Start(options);
  CAPSTAN_ASSIGN_OR_RETURN(const bool failed, AnyRank(*group_, !server.ok()));
  if (failed) return server.status();
  server_ = *std::move(server);
  std::vector<std::string> addresses;
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    addresses = FromAllRanks(*group_, server_->address());
    return absl::OkStatus();
  }));
  const int next = (info_.rank + info_.local_world_size) % info_.world_size;
  sender_ = std::make_unique<MirrorSender>(
      addresses[next], std::chrono::seconds(10),
      [next](const std::string& how) {
        std::cerr << absl::StrCat("rank ", next, " is lost: ", how, "\n");
        _exit(kHungExitCode);
      });
  return absl::OkStatus();
}

absl::Status Rank::Hold() {
  absl::Status status;
  if (group_->rank() == 0) {
    const bool again = info_.restart > 0 || job_ > 1;
    RunConfig config;
    config.set_output_dir(kRunFolder);
    config.mutable_train()->set_resume(Train::AUTO);
    absl::StatusOr<HeldFolder> held = PrepareOutputFolder(
        config, "", "", again ? kLostHostPatience : kLockPatience);
    status = held.status();
    if (held.ok()) held_ = *held;
    if (status.ok()) TheLedger()->Holds();
  }
  return Agree(*group_, status, "hold the folder");
}

absl::Status Rank::Restore() {
  part_ = std::make_unique<Part>(group_->rank(), group_->size());
  CAPSTAN_ASSIGN_OR_RETURN(
      const Resumed resumed,
      LoadNewestCheckpoint(kRunFolder, part_->Parts(*group_)));
  const bool found = !resumed.folder.empty();
  if (found) {
    state_ = resumed.state;
  } else {
    for (int64_t i = 0; i < part_->count; ++i) {
      part_->values()[i] = ValueAt(0, part_->begin + i);
    }
  }
  TheLedger()->Loads(state_.step, found);
  TheLedger()->CheckState("after it went on", state_.step, part_->values(),
                          part_->begin, part_->count);
  return absl::OkStatus();
}

absl::Status Rank::Step() {
  // Computes.
  TheWorld()->Pass(TheWorld()->random().Between(500, 20000) * kMicrosecond);
  double sums[] = {1.0, static_cast<double>(state_.step),
                   StopRequested() != 0 ? 1.0 : 0.0};
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    group_->AllReduceHost(absl::MakeSpan(sums));
    return absl::OkStatus();
  }));
  if (sums[0] != group_->size() ||
      sums[1] != static_cast<double>(state_.step) * group_->size()) {
    TheLedger()->Violate("sum: ranks of one group are in different steps");
  }
  const int64_t step = ++state_.step;
  for (int64_t i = 0; i < part_->count; ++i) {
    float& value = part_->values()[i];
    value = static_cast<float>((static_cast<int64_t>(value) * 3 + step) % 8191);
  }
  TheLedger()->CheckState("after a step", step, part_->values(), part_->begin,
                          part_->count);
  TheLedger()->Finished(step);
  StepFinished(step);
  const bool stops = sums[2] > 0;
  if (stops || step % schedule_.save_every == 0 || step == schedule_.steps) {
    CAPSTAN_RETURN_IF_ERROR(Save());
  }
  return stops && step < schedule_.steps
             ? absl::CancelledError("stopped by a signal")
             : absl::OkStatus();
}

absl::Status Rank::Save() {
  absl::Status here;
  if (group_->rank() == 0) here = LookAtFolder(&held_).status;
  CAPSTAN_RETURN_IF_ERROR(Agree(*group_, here, "find the run's folder"));
  SaveRequest request;
  request.output_dir = kRunFolder;
  request.train_state = state_;
  request.keep = schedule_.keep;
  const absl::Status saved = SaveCheckpoint(request, part_->Parts(*group_));
  if (saved.ok()) TheLedger()->Saved(state_.step);
  return saved;
}

absl::Status Rank::Run() {
  const Time begun = TheWorld()->now();
  TheLedger()->Begins(job_, info_.nodes);
  const absl::Status joined = Join();
  TheLedger()->Joined(begun, job_, info_.nodes);
  CAPSTAN_RETURN_IF_ERROR(MarkLostPeer(joined));
  RanksHaveMet();
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string group,
      FromRank0(*group_, absl::StrCat("group of process ", getpid())));
  CAPSTAN_RETURN_IF_ERROR(WatchNext());
  TheLedger()->Met(group);
  CAPSTAN_RETURN_IF_ERROR(Hold());
  CAPSTAN_RETURN_IF_ERROR(Restore());
  while (state_.step < schedule_.steps) CAPSTAN_RETURN_IF_ERROR(Step());
  CAPSTAN_RETURN_IF_ERROR(Agree(*group_, absl::OkStatus(), "end the run"));
  if (sender_ != nullptr) sender_->MayLeave();
  CAPSTAN_RETURN_IF_ERROR(Agree(*group_, absl::OkStatus(), "leave the run"));
  return absl::OkStatus();
}

}  // namespace

absl::Status RunRank(const RankInfo& info, const Schedule& schedule, int job) {
  Mine()->name = absl::StrCat("rank ", info.rank);
  TheWorld()->Tell(Mine(), absl::StrCat("begins as one of ", info.world_size));
  const auto status = std::make_shared<absl::Status>();
  OnOwnStack([status, info, &schedule, job] {
    *status = CatchAll([&] { return Rank(info, schedule, job).Run(); });
  });
  TheWorld()->Tell(Mine(), status->ok() ? "is through" : status->ToString());
  return *status;
}

int Audit() {
  int64_t newest = 0;
  const auto whole = WholeCheckpoints(kRunFolder);
  for (const StoredCheckpoint& one : whole) {
    newest = std::max(newest, one.step);
    const std::unique_ptr<ProcessGroup> group = CreateSingleGroup(at::kCPU);
    Part part(0, 1);
    const absl::StatusOr<TrainState> state =
        LoadCheckpoint(one.path, part.Parts(*group));
    if (!state.ok()) {
      TheLedger()->Violate(absl::StrCat("whole: ", state.status().message()));
      return 1;
    }
    TheLedger()->CheckState("as an auditor", state->step, part.values(), 0,
                            kElements);
    if (state->step != one.step) {
      TheLedger()->Violate(
          absl::StrCat("whole: ", one.path, " is of step ", state->step));
    }
  }
  if (newest < TheLedger()->saved()) {
    TheLedger()->Violate(absl::StrCat("lost: step ", TheLedger()->saved(),
                                      " was saved, and the newest checkpoint "
                                      "is that of step ",
                                      newest));
  }
  return 0;
}

}  // namespace capstan::sim
