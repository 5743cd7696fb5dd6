// SPDX-License-Identifier: Apache-2.0
//
// A client of the process management interface, version 1: lines of key=value
// words over a socket that mpiexec (MPICH's and Intel MPI's Hydra) leaves in
// PMI_FD. See "PMI: A Scalable Parallel Process-Management Interface for
// Extreme-Scale Systems", Balaji et al., EuroMPI 2010.
#ifndef CAPSTAN_TRAINER_LAUNCHER_PMI1_H_
#define CAPSTAN_TRAINER_LAUNCHER_PMI1_H_

#include <chrono>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

// One thread. Errors are UNAVAILABLE.
class Pmi1 {
 public:
  // fd: a connected stream socket, which the caller keeps. No answer may take
  // longer than until `deadline`.
  Pmi1(int fd, std::chrono::steady_clock::time_point deadline)
      : fd_(fd), deadline_(deadline) {}

  // First. A process can do this once.
  absl::Status Init();
  // The name of the space of keys and values that all processes of this mpiexec
  // share, and no others: it has mpiexec's process number and host.
  absl::StatusOr<std::string> Space();
  // Visible to all after the next barrier. No spaces in key or value.
  absl::Status Put(absl::string_view key, absl::string_view value);
  // NOT_FOUND if there is no such key.
  absl::StatusOr<std::string> Get(absl::string_view key);
  // Waits until all processes have called it.
  absl::Status Barrier();
  // Last.
  absl::Status Finalize();

 private:
  using Words = std::map<std::string, std::string>;

  // Sends "cmd=.." and returns the words of the answer, whose cmd must be
  // `answer`.
  absl::StatusOr<Words> Ask(const std::string& request,
                            absl::string_view answer);
  absl::StatusOr<std::string> ReadLine();

  const int fd_;
  const std::chrono::steady_clock::time_point deadline_;
  std::string space_;
  std::string read_;  // beyond the last line
};

// The host of each rank, numbered from 0, by the value of
// "PMI_process_mapping": "(vector,(0,3,2))" is three hosts from number 0 on, of
// two ranks each; blocks may follow each other, and repeat until all `ranks`
// have one. INVALID_ARGUMENT for other texts.
absl::StatusOr<std::vector<int>> HostsOfRanks(absl::string_view mapping,
                                              int ranks);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_LAUNCHER_PMI1_H_
