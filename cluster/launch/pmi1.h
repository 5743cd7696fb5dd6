// SPDX-License-Identifier: Apache-2.0
//
// A client of the process management interface, version 1: lines of key=value
// words over a socket that mpiexec (MPICH's and Intel MPI's Hydra) leaves in
// PMI_FD. See "PMI: A Scalable Parallel Process-Management Interface for
// Extreme-Scale Systems", Balaji et al., EuroMPI 2010.
#ifndef CAPSTAN_CLUSTER_LAUNCH_PMI1_H_
#define CAPSTAN_CLUSTER_LAUNCH_PMI1_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/network.h"

namespace capstan {

// Used by one thread. Errors are UNAVAILABLE.
class Pmi1 {
 public:
  // `fd` is a connected stream socket, not owned. All answers must come before
  // `deadline`.
  Pmi1(int fd, Deadline deadline) : fd_(fd), deadline_(deadline) {}

  // Starts the session. Called first, once per process.
  absl::Status Init();
  // Returns the name of the key-value space that only the processes of this
  // mpiexec share. It contains mpiexec's process number and host.
  absl::StatusOr<std::string> Space();
  // Sets a value, visible to all after the next barrier. Neither key nor value
  // may contain spaces.
  absl::Status Put(absl::string_view key, absl::string_view value);
  // NOT_FOUND if there is no such key.
  absl::StatusOr<std::string> Get(absl::string_view key);
  // Waits until all processes have called it.
  absl::Status Barrier();
  // Ends the session. Called last.
  absl::Status Finalize();

 private:
  using Words = std::map<std::string, std::string>;

  // Sends "cmd=.." and returns the words of the answer, whose cmd must be
  // `answer`.
  absl::StatusOr<Words> Ask(const std::string& request,
                            absl::string_view answer);

  const int fd_;
  const Deadline deadline_;
  std::string space_;
};

// Returns the host number of each rank from the value of "PMI_process_mapping":
// "(vector,(0,3,2))" is three hosts from number 0 on, of two ranks each. There
// may be several blocks, which repeat until all `ranks` have a host.
// INVALID_ARGUMENT for other texts.
absl::StatusOr<std::vector<int>> HostsOfRanks(absl::string_view mapping,
                                              int ranks);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_PMI1_H_
