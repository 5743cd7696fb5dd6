// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/hosts/host_pipeline.h"

#include <glog/logging.h>

#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace capstan {

int HostSteps::AddLocal(Run run) {
  steps_.push_back({std::move(run), nullptr, -1, {}});
  return static_cast<int>(steps_.size()) - 1;
}

int HostSteps::AddMessages(Messages messages) {
  steps_.push_back({nullptr, std::move(messages), streams_++, {}});
  return static_cast<int>(steps_.size()) - 1;
}

void HostSteps::After(int step, int other, int lag) {
  if (step != kNone && other != kNone) {
    steps_[step].after.push_back({other, lag});
  }
}

namespace {

// Most likely differs for different calls.
int TagOf(const CollectiveCall& call) {
  static_assert(sizeof(call) == 56, "it has no gaps");
  const uint32_t hash = Crc32c(
      absl::string_view(reinterpret_cast<const char*>(&call), sizeof(call)));
  return static_cast<int>(hash % (HostLinks::kTags / HostPipeline::kTags)) *
         HostPipeline::kTags;
}

}  // namespace

absl::Status HostPipeline::Run(const CollectiveCall& call,
                               const HostSteps& steps, int64_t blocks) {
  CHECK_LE(steps.steps_.size(), static_cast<size_t>(kMaxSteps));
  // The others may still read from the slots, and the leader send from them.
  for (int rank = 0; rank < meeting_->size(); ++rank) {
    CAPSTAN_RETURN_IF_ERROR(meeting_->Await(rank, kEnded, ended_));
  }
  meeting_->Call(ended_, call);
  meeting_->Publish(kBegun, ended_ + 1);
  tag_ = TagOf(call);
  std::vector<int64_t> begun(steps.steps_.size());
  std::vector<ShmCondition> missing;
  bool checked = false;
  while (true) {
    bool went_on = false;
    missing.clear();
    if (!checked) {
      const int lagging = meeting_->Lagging(kBegun, ended_ + 1);
      if (lagging >= 0) {
        missing.push_back({lagging, kBegun, ended_ + 1});
      } else {
        CAPSTAN_RETURN_IF_ERROR(meeting_->CheckCalls(ended_));
        checked = true;
      }
    }
    CAPSTAN_RETURN_IF_ERROR(GoOn(steps, blocks, &begun, &went_on, &missing));
    if (went_on) continue;
    if (missing.empty()) break;
    CAPSTAN_RETURN_IF_ERROR(meeting_->AwaitAny(missing));
  }
  base_ += blocks;
  meeting_->Publish(kEnded, ++ended_);
  return absl::OkStatus();
}

absl::Status HostPipeline::GoOn(const HostSteps& steps, int64_t blocks,
                                std::vector<int64_t>* begun, bool* went_on,
                                std::vector<ShmCondition>* missing) {
  for (int i = 0; i < static_cast<int>(steps.steps_.size()); ++i) {
    const bool local = steps.steps_[i].run != nullptr;
    if (!local && links_ == nullptr) continue;
    int64_t& next = (*begun)[i];
    if (next < blocks) {
      if (!CanDo(steps, i, next, missing)) continue;
      CAPSTAN_RETURN_IF_ERROR(Do(steps, i, next));
      ++next;
      *went_on = true;
    } else if (!local && !meeting_->HasDone(0, StageOf(i), base_ + blocks)) {
      // Its messages are under way.
      missing->push_back({0, StageOf(i), base_ + blocks});
    }
  }
  return absl::OkStatus();
}

bool HostPipeline::CanDo(const HostSteps& steps, int step, int64_t k,
                         std::vector<ShmCondition>* missing) const {
  for (const HostSteps::Before& before : steps.steps_[step].after) {
    if (k < before.lag) continue;
    const ShmStage stage = StageOf(before.step);
    const uint64_t count = base_ + k - before.lag + 1;
    int lagging = -1;
    if (steps.steps_[before.step].run != nullptr) {
      lagging = meeting_->Lagging(stage, count);
    } else if (!meeting_->HasDone(0, stage, count)) {
      lagging = 0;
    }
    if (lagging < 0) continue;
    missing->push_back({lagging, stage, count});
    return false;
  }
  return true;
}

absl::Status HostPipeline::Do(const HostSteps& steps, int step, int64_t k) {
  const HostSteps::Step& taken = steps.steps_[step];
  const ShmStage stage = StageOf(step);
  const uint64_t count = base_ + k + 1;
  if (taken.run != nullptr) {
    taken.run(k);
    meeting_->Publish(stage, count);
    return absl::OkStatus();
  }
  std::vector<HostMessage> messages = taken.messages(k);
  for (HostMessage& message : messages) {
    CHECK_LT(message.tag, kTags);
    message.tag += tag_;
  }
  return links_->Start(taken.stream, messages, [this, stage, count] {
    meeting_->Publish(stage, count);
  });
}

}  // namespace capstan
