// SPDX-License-Identifier: Apache-2.0
//
// Locks a run's folder, since two runs in one would overwrite each other's
// files.
#ifndef CAPSTAN_TRAINER_SESSION_HELD_FOLDER_H_
#define CAPSTAN_TRAINER_SESSION_HELD_FOLDER_H_

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace capstan {

// A run killed a moment ago may still be exiting.
constexpr std::chrono::milliseconds kLockPatience{2000};
// A file server keeps the locks of a lost host until their lease ends: 90 s
// with Linux's NFS server (nfsd(7), nfsv4leasetime).
constexpr std::chrono::milliseconds kLostHostPatience{150000};

// A locked folder. Its descriptors stay open until this process and its forks
// end, which releases the lock; copies share it.
struct HeldFolder {
  std::string path;  // by which it was held
  int fd = -1;       // of the folder; -1: none is held
  int lock = -1;     // of its file .lock; -1: the file system has no locks
};

// Locks an existing folder. A run that finds it locked reports this process and
// its job `placed_by` ("SLURM: job 7"). Warns if the file system has no locks.
// Waits up to `patience` for another process's lock, and says so; CANCELLED if
// it is asked to stop meanwhile (StopRequested).
absl::StatusOr<HeldFolder> HoldFolder(const std::string& folder,
                                      const std::string& placed_by,
                                      std::chrono::milliseconds patience);

// The present state of a held folder.
struct FolderNow {
  // OK if its path still leads to it and its lock file exists; otherwise an
  // error.
  absl::Status status;
  // If not OK, the folder's present path, if no other run can be in it; "" if
  // there is none. If only the lock file was missing, it has been restored.
  std::string where;
};

// Returns FAILED_PRECONDITION for a folder that no longer exists.
absl::Status WasDeleted(const std::string& path);

// Checks whether the folder was renamed or deleted or has lost its lock, after
// which another run may use it. Takes a few system calls.
FolderNow LookAtFolder(HeldFolder* held);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_HELD_FOLDER_H_
