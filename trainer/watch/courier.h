// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_WATCH_COURIER_H_
#define CAPSTAN_TRAINER_WATCH_COURIER_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "absl/types/optional.h"
#include "trainer/watch/ledger.h"
#include "trainer/watch/rank_view.h"

namespace capstan {

// Carries reports between the hosts of a run, once a second, by their meeting's
// store, whose connections are those of ranks that have proved to be in the
// run. On a thread of its own, as the store may not answer for long. Only one
// rank of a host has anything to carry; the others' idle.
class Courier {
 public:
  struct Heard {
    absl::optional<HostReport> report;  // the last one
    int64_t at_ns = 0;                  // when it was new here
  };

  // `report` gives this host's, encoded, or "" if that is another rank's task;
  // on the courier's thread.
  Courier(const Ledgers& ledgers, std::function<std::string()> report);
  // Doesn't wait for the store for long: the thread may outlive this.
  ~Courier();
  Courier(const Courier&) = delete;
  Courier& operator=(const Courier&) = delete;

  // By host.
  std::vector<Heard> heard() const;
  // How long the store hasn't answered; 0: it isn't being asked.
  int64_t pending_ns() const;

 private:
  struct State;
  static void Run(const std::shared_ptr<State>& state);

  const std::shared_ptr<State> state_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_WATCH_COURIER_H_
