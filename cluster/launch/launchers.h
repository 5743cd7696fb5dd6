// SPDX-License-Identifier: Apache-2.0
//
// Reads a process's place from the environment, for place.cc. launchers.cc has
// the table of launchers, and launcher_readers.cc reads its rows.
#ifndef CAPSTAN_CLUSTER_LAUNCH_LAUNCHERS_H_
#define CAPSTAN_CLUSTER_LAUNCH_LAUNCHERS_H_

#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "cluster/launch/environment.h"
#include "cluster/launch/place.h"

namespace capstan {

// The product of these limits is an int.
constexpr int kMostNodes = 65536;
constexpr int kMostRanksOfANode = 10000;

// Where rank 0 listens if a per-node launcher names its host and no port
// (SkyPilot, dstack, a rendezvous of "HOST"): torchrun's default.
constexpr int kDefaultPort = 29500;

struct PlaceRequest {
  const LaunchSettings& settings;
  int gpus = 0;
  int gpus_on_machine = 0;
};

// Reads the place from the first launcher of the table that is present; without
// one, returns PlaceAlone.
absl::StatusOr<Place> FromEnvironment(const PlaceRequest& request);

// The processes that mpirun, or else a scheduler, has started together with
// this one.
struct StartedTasks {
  const char* variable = "";  // that says so
  int tasks = 0;              // on all hosts, more than 1
  bool several_here = false;
};
// Returns nullopt if there are none. A variable that isn't a number counts as
// unset.
absl::optional<StartedTasks> TasksOfLaunchers();

// Returns how many ranks our launcher would fork here: launch.processes, or one
// for each GPU, or two. A FieldError if that is more than the GPUs.
absl::StatusOr<int> RanksHere(const PlaceRequest& request);
// Returns the place of a host whose `ranks` ranks our launcher forks.
Place NodePlace(int node_rank, int nodes, int ranks);
// Returns the place of our launcher's ranks on this host only.
absl::StatusOr<Place> PlaceAlone(const PlaceRequest& request);

// Returns a run key, such as "torchrun-JOB-n1-29500", that fits into a file
// name and differs for different texts.
std::string RunKey(absl::string_view text);

// The meaning of a launcher's variable.
enum Fact {
  kSize,
  kRank,
  kLocalSize,
  kLocalRank,
  kNodes,
  kNode,
  kHosts,         // a list; rank 0 is on the first
  kTasksOfHosts,  // SLURM's list
  kMaster,        // rank 0's host
  kPort,          // its port; none: MASTER_PORT or kDefaultPort
  kRanksOfNode,   // as torchrun's --nproc-per-node
  kGpusOfNode,
  kToken,  // a secret that all processes of a run have, and no others
  kPmi,    // the descriptor of a PMI-1 service
};

class Reading;

// Each reads one kind of launcher into *place. A row must have the facts that
// its reader needs, or reading crashes; those that it doesn't name are ignored.

// A process is a rank. Needs kSize, kRank, kLocalSize and kLocalRank; reads
// kNodes, kNode, kMaster, kToken and kPmi, too, but no list of hosts.
void ReadTask(Reading* read, Place* place);
// RANK and its companions, LOCAL_RANK, MASTER_ADDR, .. under these names.
void ReadRank(Reading* read, Place* place);
// srun's lists, and other variables of SLURM's.
void ReadSlurm(Reading* read, Place* place);
// One process a host. Needs kNode, and either kHosts (words between spaces) or
// kNodes and kMaster; reads kPort (with kMaster) and kRanksOfNode or
// kGpusOfNode, too.
void ReadNode(Reading* read, Place* place);

// How to treat the only process that a launcher has started: as a run of one
// rank, as a host whose ranks we fork, or as if without the launcher.
// TasksOfLaunchers, which has launch.nodes and a smaller WORLD_SIZE refused,
// doesn't count the tasks of a launcher with kRank; one with another needs
// kSize, and kLocalSize or kNodes.
enum class Single { kRank, kAlone, kIgnored };

struct Launcher {
  using Texts = std::vector<const char*>;

  // For the banner, and RankInfo::run_key, of pieces one after the other. A
  // piece "-$A|B" is "-" and the value of A or else of B; nothing if neither is
  // set. $host is RankInfo::master_addr.
  Texts name;
  Texts key;
  // It is there if one of these is set, ..
  Texts signs;  // "NAME is set": what messages say of it, $0 being its value
  // .. and one of these, if there are any; "!NAME": isn't set.
  Texts with;
  std::map<Fact, const char*> facts;
  void (*reader)(Reading*, Place*);
  // What to do if some of its variables are missing.
  const char* advice;
  Single single = Single::kRank;
};

// Reads a launcher's variables and keeps the first error. A wrong variable
// reads as the smallest or empty value.
class Reading {
 public:
  Reading(const Launcher& launcher, const PlaceRequest& request)
      : launcher_(launcher), request_(request) {}

  const PlaceRequest& request() const { return request_; }
  const absl::Status& status() const { return status_; }

  // Returns the variable's name, or null if the launcher has none.
  const char* operator[](Fact fact) const {
    const auto found = launcher_.facts.find(fact);
    return found == launcher_.facts.end() ? nullptr : found->second;
  }

  template <typename... Parts>
  void FailIf(bool wrong, const char* name, const Parts&... problem) {
    if (wrong) status_.Update(VariableError(name, absl::StrCat(problem...)));
  }
  // Records that `name` isn't set, though others of the launcher's are.
  void Missing(const char* name);
  template <typename T>
  T Take(absl::StatusOr<T> value) {
    if (value.ok()) return *std::move(value);
    status_.Update(value.status());
    return T();
  }
  std::string Text(const char* name) {
    if (!IsSet(name)) Missing(name);
    return Variable(name).value_or("");
  }
  int Int(Fact fact, int low, int high = kMostInt) {
    const char* const name = (*this)[fact];
    if (!IsSet(name)) Missing(name);
    return Take(IntVariable(name, low, high)).value_or(low);
  }
  // Reads a variable that may be missing.
  absl::optional<int> MaybeInt(const char* name, int low, int high = kMostInt) {
    if (name == nullptr) return absl::nullopt;
    return Take(IntVariable(name, low, high));
  }

 private:
  static constexpr int kMostInt = std::numeric_limits<int>::max();

  const Launcher& launcher_;
  const PlaceRequest& request_;
  absl::Status status_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_LAUNCHERS_H_
