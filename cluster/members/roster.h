// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_MEMBERS_ROSTER_H_
#define CAPSTAN_CLUSTER_MEMBERS_ROSTER_H_

#include <chrono>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "cluster/launch/network.h"
#include "cluster/launch/restarts.h"

namespace capstan {

// The name in a host's id (Roster::Came), for people; and what a host that is
// left out is known by when it comes again: its machine or, unknown, its name.
std::string NameIn(const std::string& id);
std::string KeyIn(const std::string& id);

// Decides which hosts a run goes on with, from who comes, leaves and dies. The
// leader's launcher has one. Knows no sockets; time is what the caller says.
// Not thread-safe.
class Roster {
 public:
  // A host that has come to a run under way is new until it has taken part in
  // so many steps. If its ranks fail before, it is left out; and after it has
  // gone, others wait before they are taken in, longer each time in a row, as
  // each costs the run two changes.
  static constexpr int64_t kProvenSteps = 10;
  static constexpr std::chrono::seconds kJoinPause{5};
  static constexpr int kMostDoublings = 6;  // of it

  struct Options {
    int ranks_per_host = 1;
    // A world has so many ranks, and a multiple of `multiple`.
    int min_ranks = 1;
    int max_ranks = 1;
    int multiple = 1;
    // Hosts to wait for before the first world; 0: unknown. Then it begins
    // `settling` after the last has come.
    int first_hosts = 0;
    // How long those that have come wait for the next one, which may still be
    // queued.
    std::chrono::milliseconds begin_patience{300000};
    std::chrono::milliseconds settling{3000};
    // How long a run that has too few hosts left waits for more.
    std::chrono::milliseconds patience{30000};
    // After an event others of its kind may follow.
    std::chrono::milliseconds gathering{500};
    int max_restarts = 0;
  };

  // A world: the hosts in the order of their ranks. Those of the world before
  // come first, in their former order, so that rank 0 stays where it is.
  struct World {
    int64_t number = 0;  // from 1
    std::vector<std::string> hosts;
    // Whether the ranks of the world before are to leave at the end of a step,
    // rather than at once.
    bool gentle = false;
    // If so, whether mirrors mayn't outlive that: several of its hosts go, or
    // none stays.
    bool saves = false;
    // Why, for people: "host b has left".
    std::string why;
  };

  struct Ending {
    std::string text;
    // Whether the ranks save and stop, as after a signal; otherwise the run has
    // failed.
    bool stops = false;
  };

  Roster(const Options& options, Deadline now)
      : options_(options), restarts_(options.max_restarts), began_(now) {}

  // How a leader went.
  struct Departure {
    bool told = false;  // with notice, else its connection has ended
    // Whether the ranks of its world may leave at the end of a step: they don't
    // if some are gone.
    bool gentle = false;
  };
  // The leader, the first host of the world `before`, is gone, and this one
  // takes over. The other hosts have some time to come again.
  void TakeOver(World before, const Departure& last, Deadline now);

  // A host's launcher has come. `id` is its own for ever: the host's name or
  // "NAME@MACHINE", '/', and what tells it from others. `number`: of the last
  // world that it knows of, which the next one exceeds.
  void Came(const std::string& id, Deadline now, int64_t number = 0);
  // Its process is gone or, if `silent`, perhaps only the network between. If
  // that goes for half of the world, which may go on elsewhere and has the
  // mirrors, those have `patience` to come again.
  void Lost(const std::string& id, Deadline now, bool silent = false);
  // It asks to be left out, as it will be gone soon.
  void Leaving(const std::string& id, Deadline now);
  // The run is to go on without it.
  void LeaveOut(const std::string& id, const std::string& why, Deadline now);
  // Its ranks have died in `world`, after `step` (negative: before the first):
  // by themselves, or only since they lost others.
  void Died(const std::string& id, int64_t world, int64_t step,
            const std::string& how, bool themselves, Deadline now);
  // Its ranks have failed by an error of their own in `world`. Returns whether
  // the run goes on without it, as it is new (kProvenSteps), or the run has
  // another world by now.
  bool Failed(const std::string& id, int64_t world, const std::string& how,
              Deadline now);
  // The current world's ranks have finished `step`.
  void Progressed(int64_t step);
  // All stop: those who were about to leave stay until then.
  void StopAll();

  // Returns the next world once one is due; it is current from then on.
  absl::optional<World> Next(Deadline now);
  // Returns how the run ends, if it has to.
  absl::optional<Ending> End(Deadline now);
  // When Next and End are to be asked again, if nothing happens.
  Deadline next_event() const { return next_event_; }

  // Whether there is a world that can go on, as far as is known; and whether
  // it has done a step.
  bool Whole() const { return world_.number > 0 && !broken_; }
  bool progressed() const { return first_step_ >= 0; }
  bool InWorld(const std::string& id) const;
  // Whether so many hosts are silent that they may be going on without these.
  bool CutOff() const;

  // KeyIn of hosts that the run isn't to have again.
  const std::set<std::string>& left_out() const { return left_out_; }
  void set_left_out(std::set<std::string> keys) { left_out_ = std::move(keys); }
  bool LeftOut(const std::string& id) const {
    const Host* const host = Find(id);
    return host != nullptr && host->left_out;
  }

 private:
  struct Host {
    std::string id;
    bool here = false;
    bool leaving = false;
    bool left_out = false;
    bool silent = false;  // and so not here
    bool proven = false;
    int64_t steps = 0;  // unless proven: in worlds before
    bool usable() const { return here && !leaving && !left_out; }
  };

  const Host* Find(const std::string& id) const;
  Host* Find(const std::string& id) {
    const Roster& self = *this;
    return const_cast<Host*>(self.Find(id));
  }
  // Leaves a host out for good.
  void Drop(Host* host);
  // The same for the hosts that are new in this world, if there are any.
  bool DropNewcomers(Deadline now);
  // How many steps the current world has done.
  int64_t Steps() const;
  // Whether it is in the current world, and new.
  bool IsNew(const Host& host) const;
  // One that is new has failed.
  void JoinFailed(Deadline now);
  // Until when others aren't taken in.
  Deadline JoinsAt() const;
  // When a world that differs from the current one may begin.
  Deadline ChangesAt(const std::vector<std::string>& hosts, Deadline now) const;
  World Make(const std::vector<std::string>& hosts) const;
  // Those that a world of now would have.
  std::vector<std::string> Eligible(Deadline now) const;
  // As many of them as make a world.
  std::vector<std::string> Largest(std::vector<std::string> ids) const;
  bool Enough(const std::vector<std::string>& hosts) const;
  // Whether the first world may begin with these.
  bool MayBegin(const std::vector<std::string>& hosts, Deadline now);
  bool Full(const std::vector<std::string>& hosts) const;
  // Notes a reason for the next world, and that others may follow.
  void Because(const std::string& why, Deadline now);
  void Wake(Deadline at);

  const Options options_;
  Restarts restarts_;
  const Deadline began_;
  std::vector<Host> hosts_;  // by their coming; the world's first
  World world_;
  int64_t number_ = 0;  // no world has had a higher one
  // Of the current world's; negative: none.
  int64_t first_step_ = -1;
  int64_t last_step_ = -1;
  bool broken_ = false;      // the current world can't go on
  bool hint_ = false;        // if so: only ranks that have lost others say it
  bool gentle_ = false;      // if broken: by the last leader's notice
  bool exhausted_ = false;   // restarts_
  std::string how_;          // the ranks died
  int64_t died_after_ = -1;  // step
  std::vector<std::string> why_;
  std::vector<std::string> running_;  // of the last world that did a step
  std::set<std::string> left_out_;
  std::set<std::string> newcomers_;  // of the current world
  int failed_joins_ = 0;             // in a row
  Deadline join_failed_;             // the last
  Deadline latest_;                  // event
  absl::optional<Deadline> took_over_;
  absl::optional<Deadline> too_few_since_;
  Deadline next_event_ = Deadline::max();
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_MEMBERS_ROSTER_H_
