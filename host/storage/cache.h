// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_STORAGE_CACHE_H_
#define CAPSTAN_HOST_STORAGE_CACHE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "host/storage/store.h"

namespace capstan {

// The object of a run's address that names the run which uploads, as long as it
// does.
inline constexpr char kOwnerFile[] = ".capstan-owner";

// Chooses what is fetched of the objects below an address; their paths are
// relative to it.
using ChooseObjects =
    std::function<std::vector<StoredObject>(std::vector<StoredObject>)>;

// Whether a path below a run's address is of that run, not of another whose
// address lies below it.
bool IsOfRun(absl::string_view path);

// Choices of a run's folder. All of another folder.
// final/, or if there is none the newest whole checkpoint; and config.pbtxt.
std::vector<StoredObject> ModelOfRun(std::vector<StoredObject> objects);
// All but final/ and the checkpoints: what a run tells of itself; and
// kOwnerFile while it uploads.
std::vector<StoredObject> RecordsOfRun(std::vector<StoredObject> objects);
// All but final/; and those without what a checkpoint has besides its manifest.
std::vector<StoredObject> CheckpointsOfRun(std::vector<StoredObject> objects);
std::vector<StoredObject> ManifestsOfRun(std::vector<StoredObject> objects);
// RecordsOfRun of all runs below a folder.
std::vector<StoredObject> RecordsOfRuns(std::vector<StoredObject> objects);

// How much a cache of what is read from stores may have:
// CAPSTAN_STORAGE_CACHE_GIB (default: 50).
int64_t StorageCacheBytes();

// A local path with what lies at an address: an object, all objects below it
// (a folder), or those that match it (its last parts may have *, ? and [..]),
// reduced by `choose` if set. Fetches what StorageFolder()/cache doesn't have,
// which keeps at most StorageCacheBytes() and removes what hasn't been used for
// longest, never what this or another live process has got from here. What has
// changed in the store is fetched anew. Processes that ask at once share one
// download. Unless `of_one_moment`, what changes while it is fetched may be of
// several. Prints a line on standard error if it fetches. Returns other paths
// as they are, and those of file:// without it.
absl::StatusOr<std::string> LocalCopy(absl::string_view path,
                                      const ChooseObjects& choose = nullptr,
                                      bool of_one_moment = true);

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_CACHE_H_
