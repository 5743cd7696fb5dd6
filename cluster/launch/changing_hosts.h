// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_CLUSTER_LAUNCH_CHANGING_HOSTS_H_
#define CAPSTAN_CLUSTER_LAUNCH_CHANGING_HOSTS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace capstan {

// The hosts of a run whose world changes while it goes on, as this host's
// launcher sees them (cluster/members). One thread; no call blocks for long.
class ChangingHosts {
 public:
  // What the hosts have decided, and what it means here.
  struct World {
    int64_t number = 0;  // 0: none yet
    // Of this host, as in RankInfo; node_rank -1: it is a spare or left out.
    int node_rank = -1;
    int nodes = 0;
    // Where rank 0 listens.
    std::string master_addr;
    int master_port = 0;
    // The hosts' addresses, in the order of their ranks.
    std::vector<std::string> addresses;
    // Whether the ranks of the world before leave at the end of a step.
    bool gentle = false;
    // If so, whether they save a checkpoint, as several hosts go at once.
    bool saves = false;
    // node_rank is -1 because the run isn't to have this host again.
    bool left_out = false;
    std::string why;
  };
  struct Ending {
    std::string text;  // "": the run hasn't ended
    // Whether it is an error; else the ranks here are about to end, too.
    bool failed = false;
    // If so, whether ranks that run are to save and stop.
    bool stops = false;
    int code = 1;
  };

  virtual ~ChangingHosts() = default;

  // Readable when Handle is to be called.
  virtual int fd() const = 0;
  // Closes what only the launcher may hold; called in its children.
  virtual void CloseInChild() = 0;
  // Does what is due.
  virtual void Handle() = 0;
  virtual const World& world() const = 0;
  virtual const Ending& ending() const = 0;
  // Returns the socket that listens there, on rank 0's host, which becomes the
  // caller's; else -1.
  virtual int TakeListening() = 0;
  // What this host waits for, for people.
  virtual std::string Waits() const = 0;

  // The ranks of `world` have finished `step`, as far as is known before each
  // call of Handle. Cheap.
  virtual void Progressed(int64_t world, int64_t step) = 0;
  // The ranks of `world` have been started here.
  virtual void Entered(int64_t world) = 0;
  // Ranks of this host have died in `world`, after `step` (negative: before
  // their first), by themselves or since they lost others: a world follows.
  virtual void Died(int64_t world, int64_t step, const std::string& how,
                    bool themselves) = 0;
  // This host's ranks have failed by an error of their own, and its launcher
  // ends.
  virtual void Failed(int64_t world, const std::string& error) = 0;
  // The run is to go on without this host, which will be gone soon.
  virtual void Leave() = 0;
  // The run is to go on without the hosts of these numbers ("1,3") in `world`.
  virtual void LeaveOut(int64_t world, const std::string& hosts) = 0;
  // The ranks of this host have ended with `code`, and its launcher ends.
  virtual void Finish(int code) = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_CHANGING_HOSTS_H_
