// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_COMM_HOSTS_HOST_PIPELINE_H_
#define CAPSTAN_CLUSTER_COMM_HOSTS_HOST_PIPELINE_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "cluster/comm/hosts/host_links.h"
#include "cluster/comm/shm/shm_meeting.h"

namespace capstan {

// What the ranks of a host do for each block of a collective: a list of steps,
// the same on all of them. A step processes blocks 0, 1, .. in order, each as
// soon as the steps that it depends on have processed enough.
class HostSteps {
 public:
  using Run = std::function<void(int64_t block)>;
  using Messages = std::function<std::vector<HostMessage>(int64_t block)>;
  // A step that doesn't exist; After ignores it.
  static constexpr int kNone = -1;

  // A step that every rank of the host takes, for its part of the block.
  int AddLocal(Run run);
  // A step of the host's leader that sends or receives one message or more, and
  // is complete when they are.
  int AddMessages(Messages messages);
  // `step` processes block k only after all ranks that take `other` have
  // processed its block k - lag.
  void After(int step, int other, int lag = 0);

 private:
  friend class HostPipeline;
  struct Before {
    int step;
    int lag;
  };
  struct Step {
    Run run;            // or
    Messages messages;  // of the leader
    int stream;         // of the messages
    std::vector<Before> after;
  };
  std::vector<Step> steps_;
  int streams_ = 0;
};

// Runs the steps of collectives on one rank of a host, together with the host's
// other ranks. A step waits only for its dependencies, and this thread sleeps
// only if no step can proceed. So hosts can't deadlock as long as each step
// depends only on earlier steps of the same block (a receive on its send) or on
// earlier blocks. Errors are ShmMeeting::AwaitAny's and HostLinks'.
class HostPipeline {
 public:
  static constexpr int kMaxSteps = kShmStages - 2;
  // Of a step's messages.
  static constexpr int kTags = 1 << 12;

  // Not owned.
  explicit HostPipeline(ShmMeeting* meeting) : meeting_(meeting) {}

  // Not owned; null unless this rank leads the host, which is rank 0 of
  // `meeting`.
  void set_links(HostLinks* links) { links_ = links; }

  // Processes `blocks` blocks. All slots must be free at the beginning.
  // INTERNAL unless all ranks of the host make the same call. If hosts make
  // different calls, their messages never match.
  absl::Status Run(const CollectiveCall& call, const HostSteps& steps,
                   int64_t blocks);
  // Restores the initial state, like ShmMeeting::Reset.
  void Reset() { base_ = ended_ = 0; }

  // The number for ShmSegment::slot of the current collective's block 0.
  uint64_t base() const { return base_; }

 private:
  // Stages of the meeting: collectives ended, then each step.
  static constexpr ShmStage kEnded = static_cast<ShmStage>(0);
  static ShmStage StageOf(int step) { return static_cast<ShmStage>(1 + step); }
  // Collectives begun: their calls can be compared.
  static constexpr ShmStage kBegun = static_cast<ShmStage>(kShmStages - 1);

  // Processes the next block of each step that can proceed. If none can,
  // `missing` lists what they wait for.
  absl::Status GoOn(const HostSteps& steps, int64_t blocks,
                    std::vector<int64_t>* begun, bool* went_on,
                    std::vector<ShmCondition>* missing);
  // Whether `step` can process block k; otherwise adds what it waits for to
  // `missing`.
  bool CanDo(const HostSteps& steps, int step, int64_t k,
             std::vector<ShmCondition>* missing) const;
  absl::Status Do(const HostSteps& steps, int step, int64_t k);

  ShmMeeting* const meeting_;
  HostLinks* links_ = nullptr;
  int tag_ = 0;         // the current collective's part of its messages' tags
  uint64_t base_ = 0;   // blocks of all earlier collectives
  uint64_t ended_ = 0;  // collectives
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_COMM_HOSTS_HOST_PIPELINE_H_
