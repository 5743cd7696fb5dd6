// SPDX-License-Identifier: Apache-2.0
//
// Runs whose output_dir is an address of object storage (docs/storage.md). Such
// a run works in a local folder as any other; before it begins, what it is
// resumed from is fetched into that, and beside it a process uploads what
// appears there.
#ifndef CAPSTAN_TRAINER_SESSION_STORED_RUN_H_
#define CAPSTAN_TRAINER_SESSION_STORED_RUN_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "base/confined_child.h"
#include "host/config/load_config.h"
#include "host/storage/storage.h"

namespace capstan {

// The address that the run of `loaded` was given as output_dir; unset: a
// folder, or none.
absl::optional<Address> StoredOutput(const LoadedConfig& loaded);

// Makes the working folder what the run continues from: unless it has a newer
// checkpoint than the store, or as new a one, or a live run holds it, fetches
// the run's files and its newest checkpoint that isn't damaged (with the best,
// if the run keeps it). Without train.resume AUTO an address that holds a run
// is an error. Processes of one host that call this at once fetch once.
absl::Status FetchStoredRun(const Address& address, const LoadedConfig& loaded);

// Tells StoredRun that the run holds its folder, so that uploads begin: from
// the process that has started it, or a fork of that. Without one: nothing.
void LetUploadsBegin();

// The process that uploads. If it dies, that is told, and it is started again.
class StoredRun {
 public:
  // Before this process has threads. The uploads end with this process. One at
  // a time.
  static absl::StatusOr<std::unique_ptr<StoredRun>> Start(
      const Address& address, const LoadedConfig& loaded);

  // Once the ranks have ended: waits until all of the run is in the store. An
  // error says what isn't, and how to go on. OK if the run never held its
  // folder.
  absl::Status Finish();

 private:
  StoredRun(Address address, std::string folder,
            std::unique_ptr<ConfinedChild> child)
      : address_(std::move(address)),
        folder_(std::move(folder)),
        child_(std::move(child)) {}

  const Address address_;
  const std::string folder_;
  const std::unique_ptr<ConfinedChild> child_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_STORED_RUN_H_
