// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_GRPO_OBJECTIVE_SIDE_THREAD_H_
#define CAPSTAN_PLUGINS_GRPO_OBJECTIVE_SIDE_THREAD_H_

#include <functional>
#include <memory>

#include "absl/status/status.h"

namespace capstan::grpo {

// A thread that waits for programs in place of its owner, which meanwhile can
// take part in votes and leave. What programs it starts may end with it: with
// this object or, if it is still waiting then, with the process.
class SideThread {
 public:
  SideThread();
  ~SideThread();
  SideThread(const SideThread&) = delete;
  SideThread& operator=(const SideThread&) = delete;

  // Has the thread call `work`, which owns what it uses, since it may outlive
  // this object. Not before the last one has ended.
  void Begin(std::function<absl::Status()> work);
  // Whether it has ended; waits for it, for a tenth of a second at most.
  bool Ended();
  // Once it has ended: what it returned; throws what it threw.
  absl::Status Take();

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  std::shared_ptr<State> state_;  // null: no thread yet
};

}  // namespace capstan::grpo

#endif  // CAPSTAN_PLUGINS_GRPO_OBJECTIVE_SIDE_THREAD_H_
