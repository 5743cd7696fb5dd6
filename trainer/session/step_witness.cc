// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/step_witness.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/metrics/event_log.h"
#include "trainer/session/run_mirror.h"

namespace capstan {
namespace {

// The one of this process, for its group's messages; and those that were wrong
// before there was one, while the run was set up.
std::atomic<StepWitness*> current{nullptr};
std::mutex early_mutex;
std::vector<WrongMessage> early;

bool Inside(const at::Tensor& t, const void* memory) {
  if (!t.defined()) return false;
  const auto* const begin = static_cast<const char*>(t.const_data_ptr());
  return memory >= begin && memory < begin + t.nbytes();
}

int64_t ElementOf(const at::Tensor& t, const void* memory) {
  return (static_cast<const char*>(memory) -
          static_cast<const char*>(t.const_data_ptr())) /
         static_cast<int64_t>(t.element_size());
}

// A sentence about what isn't checked because of every_steps; "" if all is.
std::string LeftOut(const Session& session) {
  const Train& train = session.config.train();
  const int64_t every = std::max<int64_t>(1, train.witness().every_steps());
  if (session.first_step >= session.max_steps) return "";
  if (session.first_step / every == session.max_steps / every) {
    return absl::StrCat("WARNING: train.witness checks one step of ", every,
                        ", and none of those that are left, ",
                        session.first_step + 1, " to ", session.max_steps);
  }
  std::vector<std::string> others;
  const auto look = [&](const char* field, int64_t steps) {
    if (steps % every != 0) others.push_back(field);
  };
  look("max_steps", session.max_steps);
  look("save_every", train.save_every());
  if (session.mirror != nullptr) {
    look("mirror_every", MirrorEvery(session.config, /*on_gpu=*/false));
  }
  if (KeepsBest(train)) look("eval_every", train.eval_every());
  if (others.empty()) return "";
  return absl::StrCat(
      "train.witness checks one step of ", every,
      "; what is saved, mirrored or exported behind another isn't checked: let "
      "every_steps divide ",
      absl::StrJoin(others, ", "));
}

}  // namespace

bool StepWitness::Wanted(const RunPlan& plan) {
  return plan.config.train().witness().check() && plan.group->device().is_cpu();
}

void StepWitness::TakeWrongMessage(const WrongMessage& wrong) {
  const std::lock_guard<std::mutex> lock(early_mutex);
  StepWitness* const witness = current;
  if (witness == nullptr) {
    early.push_back(wrong);
  } else {
    witness->OnWrongMessage(wrong);
  }
}

void StepWitness::OnWrongMessage(const WrongMessage& wrong) {
  const bool known = wrong.from >= 0;
  FailUnmended(
      {wrong.from, wrong.collective},
      absl::StrCat(wrong.collective, " gave what isn't ",
                   known ? absl::StrCat("what rank ", wrong.from, " has sent")
                         : "the sum of what the ranks have sent"),
      /*moves=*/true);
}

bool StepWitness::ChecksMessages() {
  const StepWitness* const witness = current.load();
  return witness == nullptr || witness->due_;
}

StepWitness::StepWitness(Session* session)
    : session_(*session),
      products_(
          [this](const kernels::ProductFailure& failure) {
            OnProduct(failure);
          },
          session_.config.train().witness().twice()),
      failures_(session) {
  const RunParts& parts = session_.parts;
  const std::vector<std::string> states = parts.optimizer->state_names();
  const absl::Span<OptimizerShard> shards = parts.strategy->OptimizerShards();
  // Where nothing but updates and what is told to Replaced writes weights, and
  // these are what products read.
  const bool constant =
      !parts.objective->has_rollouts() && !parts.strategy->local_steps();
  for (size_t i = 0; i < shards.size(); ++i) {
    const OptimizerShard& shard = shards[i];
    auto mine = std::make_unique<Shard>();
    mine->watched.push_back({"the weight", shard.master, {}});
    mine->can_be_by_blocks =
        shard.master.scalar_type() == at::kFloat &&
        !session_.config.train().offload().optimizer_state();
    for (size_t k = 0; k < session_.optimizer_state[i].size(); ++k) {
      const at::Tensor& state = session_.optimizer_state[i][k];
      mine->watched.push_back(
          {absl::StrCat("the state ", states[k]), state, {}});
      mine->can_be_by_blocks = mine->can_be_by_blocks &&
                               state.scalar_type() == at::kFloat &&
                               state.numel() == shard.master.numel();
    }
    if (shard.working.defined()) {
      mine->watched.push_back({"the working copy", shard.working, {}});
    }
    const at::Tensor& read =
        shard.working.defined() ? shard.working : shard.master;
    if (constant) products_.Remember(read.const_data_ptr(), read.nbytes());
    shards_.push_back(std::move(mine));
  }
  SetProductWitness(&products_);
  SetKeptWitness(this);
  const std::lock_guard<std::mutex> lock(early_mutex);
  for (const WrongMessage& wrong : std::exchange(early, {})) {
    OnWrongMessage(wrong);
  }
  current = this;
}

StepWitness::~StepWitness() {
  {
    const std::lock_guard<std::mutex> lock(early_mutex);
    current = nullptr;
  }
  SetKeptWitness(nullptr);
  SetUpdateWitness(nullptr);
  SetProductWitness(nullptr);
}

absl::Status StepWitness::Begin() {
  const std::string left_out = LeftOut(session_);
  if (!left_out.empty()) session_.Note(left_out);
  return failures_.Begin();
}

// ---- What is watched.

void StepWitness::TakeAll() {
  for (const auto& shard : shards_) {
    for (Watched& watched : shard->watched) {
      watched.sums.Take(watched.tensor.const_data_ptr(),
                        watched.tensor.nbytes());
    }
  }
  taken_ = true;
}

void StepWitness::Replaced() {
  taken_ = false;
  products_.Forget();
}

void StepWitness::Verify(size_t shard, Watched* watched) {
  for (const kernels::ChangedWord& changed : watched->sums.Verify(
           watched->tensor.mutable_data_ptr(), watched->tensor.nbytes())) {
    OnChangedWord(shard, *watched, changed);
  }
}

void StepWitness::BeginStep() {
  products_.Forget();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    kept_.clear();
    // What failed before it isn't of this step's gradients.
    if (attempts_ == 0) again_ = false;
  }
  phase_ = Phase::kGradients;
  const int64_t every =
      std::max<int64_t>(1, session_.config.train().witness().every_steps());
  // So that steps are due behind which a run saves and evaluates. What is
  // computed again because of a failure is checked, too.
  const bool due = attempts_ > 0 || (session_.state.step + 1) % every == 0;
  const bool was_due = due_.exchange(due);
  if (due) {
    MendWeights();
  } else if (taken_) {
    MendAll();
    taken_ = false;
  }
  if (due == was_due) return;
  SetProductWitness(due ? &products_ : nullptr);
  SetKeptWitness(due ? this : nullptr);
}

void StepWitness::MendWeights() {
  if (!taken_) {
    if (due_) TakeAll();
    return;
  }
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (Watched& watched : shards_[i]->watched) {
      // State is read by the update alone.
      const bool weights =
          &watched == &shards_[i]->watched.front() ||
          watched.tensor.is_same(
              session_.parts.strategy->OptimizerShards()[i].working);
      if (weights) Verify(i, &watched);
    }
  }
}

void StepWitness::MendAll() {
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (Watched& watched : shards_[i]->watched) Verify(i, &watched);
  }
}

void StepWitness::BeforeUpdate(size_t shard) {
  if (!due_) return;
  products_.Forget();
  updating_ = shard;
  Shard& mine = *shards_[shard];
  mine.elements = 0;
  if (mine.can_be_by_blocks) SetUpdateWitness(this);
  if (mine.by_blocks) return;
  for (Watched& watched : mine.watched) Verify(shard, &watched);
}

void StepWitness::AfterUpdate(size_t shard) {
  if (!due_) return;
  SetUpdateWitness(nullptr);
  Shard& mine = *shards_[shard];
  const at::Tensor& master = mine.watched[0].tensor;
  const size_t states = session_.optimizer_state[shard].size();
  mine.by_blocks = mine.elements == master.numel();
  for (size_t i = mine.by_blocks ? 1 + states : 0; i < mine.watched.size();
       ++i) {
    Watched& watched = mine.watched[i];
    watched.sums.Take(watched.tensor.const_data_ptr(), watched.tensor.nbytes());
  }
}

bool StepWitness::Knows(const float* parameter) const {
  const at::Tensor& master = shards_[updating_]->watched[0].tensor;
  return Inside(master, parameter) &&
         ElementOf(master, parameter) % WordSums::kBlock == 0;
}

void StepWitness::BeforeBlock(const float* parameter, int64_t elements) {
  Shard& mine = *shards_[updating_];
  mine.elements += elements;
  const int64_t first = ElementOf(mine.watched[0].tensor, parameter);
  const size_t count = 1 + session_.optimizer_state[updating_].size();
  for (size_t i = 0; i < count; ++i) {
    Watched& watched = mine.watched[i];
    std::vector<kernels::ChangedWord> changes;
    watched.sums.VerifyBlock(first / WordSums::kBlock,
                             watched.tensor.mutable_data_ptr<float>() + first,
                             elements, &changes);
    for (const kernels::ChangedWord& changed : changes) {
      OnChangedWord(updating_, watched, changed);
    }
  }
}

void StepWitness::AfterBlock(const float* parameter, int64_t elements) {
  Shard& mine = *shards_[updating_];
  const int64_t first = ElementOf(mine.watched[0].tensor, parameter);
  const size_t count = 1 + session_.optimizer_state[updating_].size();
  for (size_t i = 0; i < count; ++i) {
    Watched& watched = mine.watched[i];
    watched.sums.TakeBlock(first / WordSums::kBlock,
                           watched.tensor.const_data_ptr<float>() + first,
                           elements);
  }
}

void StepWitness::Take(const void* memory, int64_t bytes) {
  auto sums = std::make_shared<kernels::MemorySums>();
  sums->Take(memory, bytes);
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_[memory] = std::move(sums);
}

void StepWitness::Check(void* memory, int64_t bytes) {
  std::shared_ptr<const kernels::MemorySums> sums;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = kept_.find(memory);
    if (found == kept_.end()) return;
    sums = found->second;
  }
  for (const kernels::ChangedWord& changed : sums->Verify(memory, bytes)) {
    const char* const what = "what a layer keeps for its backward";
    const Blame blame = Own(absl::StrFormat("%s %p", what, memory));
    if (changed.mended) {
      failures_.Add(
          blame, absl::StrFormat("%s has changed in memory: 0x%08x has become "
                                 "0x%08x; it is again what it was",
                                 what, changed.was, changed.is));
    } else {
      FailUnmended(blame, absl::StrCat(what,
                                       " has changed in memory in several "
                                       "words"));
    }
  }
}

void StepWitness::Drop(const void* memory) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_.erase(memory);
}

// ---- What failed.

std::string StepWitness::NameOf(size_t shard, int64_t element) const {
  const OptimizerShard& of = session_.parts.strategy->OptimizerShards()[shard];
  for (const ParameterRange& range : of.ranges) {
    if (element < range.offset || element >= range.offset + range.length) {
      continue;
    }
    return session_.parts.model->parameters()[range.parameter].name;
  }
  return "";
}

std::string StepWitness::NameOf(const void* memory) const {
  const absl::Span<OptimizerShard> shards =
      session_.parts.strategy->OptimizerShards();
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const at::Tensor& t :
         {shards[i].master, shards[i].working, shards[i].gradient}) {
      if (Inside(t, memory)) return NameOf(i, ElementOf(t, memory));
    }
  }
  return "";
}

void StepWitness::OnProduct(const kernels::ProductFailure& failure) {
  const kernels::ProductFailure& p = failure;
  const std::string of_c = NameOf(p.c), of_b = NameOf(p.b);
  const std::string what =
      !of_c.empty()   ? absl::StrCat("the gradient of ", of_c)
      : !of_b.empty() ? absl::StrCat(p.b_transposed ? "a product with "
                                                    : "a gradient through ",
                                     of_b)
                      : "a product";
  const std::string where =
      absl::StrCat(what, " (", p.m, " x ", p.n, " x ", p.k, ", ", p.type,
                   ") was wrong in row ", p.row, " on core ", p.cores, ": ");
  if (p.mended) {
    return failures_.Add(
        Own(what),
        absl::StrCat(where, "it was computed again, and agrees with ",
                     p.by_bits ? "another making" : "its check"));
  }
  if (p.weight_changed) {
    return FailUnmended(
        Own(of_b.empty() ? what : absl::StrCat("the weight of ", of_b)),
        absl::StrCat(where, "the weight has changed in memory"));
  }
  FailUnmended(
      Own(what),
      absl::StrCat(where, p.sum_lost  ? "what it was added to is gone"
                          : p.by_bits ? "no two makings of it agree"
                                      : "it was computed again and never "
                                        "agreed with its check"));
}

std::string StepWitness::PlaceOf(size_t shard, const Watched& watched,
                                 const kernels::ChangedWord& changed) const {
  const at::Tensor& t = watched.tensor;
  if (t.numel() !=
      session_.parts.strategy->OptimizerShards()[shard].master.numel()) {
    return watched.what;
  }
  const auto name_of = [&](int64_t word) {
    const int64_t element = word * 4 / static_cast<int64_t>(t.element_size());
    return NameOf(shard, std::min(element, t.numel() - 1));
  };
  if (changed.mended) {
    const std::string name = name_of(changed.word);
    return absl::StrCat(watched.what, name.empty() ? "" : " of ", name);
  }
  const int64_t first = changed.word / WordSums::kBlock * WordSums::kBlock;
  const std::string from = name_of(first);
  const std::string to = name_of(first + WordSums::kBlock - 1);
  return absl::StrCat(watched.what, from.empty() ? "" : " of ", from,
                      to == from || to.empty() ? "" : " or one up to ",
                      to == from ? "" : to);
}

void StepWitness::OnChangedWord(size_t shard, const Watched& watched,
                                const kernels::ChangedWord& changed) {
  const std::string what = PlaceOf(shard, watched, changed);
  if (changed.mended) {
    return failures_.Add(
        Own(what),
        absl::StrFormat("%s has changed in memory: 0x%08x has become "
                        "0x%08x; it is again what it was",
                        what, changed.was, changed.is));
  }
  FailLost(Own(what),
           absl::StrCat(what,
                        " has changed in memory in several words that can't "
                        "be mended"));
}

WitnessFailures::Blame StepWitness::Own(std::string what) const {
  return {session_.group->rank(), std::move(what)};
}

void StepWitness::FailLost(Blame blame, std::string text) {
  failures_.Add(std::move(blame), std::move(text));
  const std::lock_guard<std::mutex> lock(mutex_);
  lost_ = true;
}

void StepWitness::FailUnmended(Blame blame, std::string text, bool moves) {
  const Phase phase = phase_;
  if (phase == Phase::kUpdate) {
    return FailLost(std::move(blame),
                    absl::StrCat(text, "; the step's update is wrong"));
  }
  if (phase == Phase::kElsewhere && moves) {
    return FailLost(std::move(blame),
                    absl::StrCat(text,
                                 "; what it has moved, weights perhaps, "
                                 "is wrong"));
  }
  if (phase == Phase::kElsewhere) {
    return failures_.Add(std::move(blame),
                         absl::StrCat(text,
                                      "; it wasn't in a step, and what was "
                                      "computed with it stays wrong"));
  }
  failures_.Add(
      std::move(blame),
      absl::StrCat(text, "; the step's gradients are computed again"));
  const std::lock_guard<std::mutex> lock(mutex_);
  again_ = true;
}

absl::StatusOr<bool> StepWitness::Again() {
  std::vector<double> flags;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    flags = {again_ ? 1.0 : 0.0, lost_ ? 1.0 : 0.0};
    again_ = false;
  }
  CAPSTAN_RETURN_IF_ERROR(CatchAll([&] {
    session_.group->AllReduceHost(absl::MakeSpan(flags));
    return absl::OkStatus();
  }));
  if (flags[1] > 0.0) {
    CAPSTAN_RETURN_IF_ERROR(Tell());
  }
  if (flags[0] == 0.0) {
    attempts_ = 0;
    phase_ = Phase::kUpdate;
    return false;
  }
  if (++attempts_ <= kMostAttempts) return true;
  CAPSTAN_RETURN_IF_ERROR(Tell());
  return absl::DataLossError(
      absl::StrCat("step ", session_.state.step + 1,
                   ": its gradients were computed ", attempts_,
                   " times, and failed the witness's checks each time "
                   "(train.witness, docs/witness.md)"));
}

absl::Status StepWitness::EndStep() {
  if (session_.parts.strategy->local_steps()) Replaced();
  CAPSTAN_RETURN_IF_ERROR(Tell());
  phase_ = Phase::kElsewhere;
  return absl::OkStatus();
}

absl::Status StepWitness::BeforeSave() {
  if (taken_) MendAll();
  return Tell();
}

absl::Status StepWitness::End() {
  CAPSTAN_RETURN_IF_ERROR(Tell());
  session_.Note(Summary(), kWitnessEvent);
  return absl::OkStatus();
}

absl::Status StepWitness::Tell() {
  bool lost = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    lost = std::exchange(lost_, false);
  }
  const bool under_way = phase_ != Phase::kElsewhere || session_.GoesOn();
  return failures_.Tell(session_.state.step + (under_way ? 1 : 0), lost);
}

std::string StepWitness::Summary() {
  const kernels::ProductChecker::Counts mine = products_.counts();
  std::vector<double> sums = {static_cast<double>(mine.products),
                              static_cast<double>(mine.repeated)};
  session_.group->AllReduceHost(absl::MakeSpan(sums));
  const Witness& settings = session_.config.train().witness();
  return absl::StrFormat(
      "the witness has %s %.0f products (%.0f of them once more, with the "
      "same bits), the state and what was sent, %s: %d %s",
      settings.twice() ? "made twice and checked" : "checked", sums[0], sums[1],
      absl::StrCat(settings.every_steps() > 1
                       ? absl::StrCat("in one step of ", settings.every_steps())
                       : "in all steps",
                   session_.first_step > 0
                       ? absl::StrCat(" behind step ", session_.first_step)
                       : ""),
      failures_.all(), failures_.all() == 1 ? "failure" : "failures");
}

}  // namespace capstan
