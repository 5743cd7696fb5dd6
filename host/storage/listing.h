// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_STORAGE_LISTING_H_
#define CAPSTAN_HOST_STORAGE_LISTING_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "host/storage/storage.h"

namespace capstan {

// What an address means.
struct Listing {
  enum Kind {
    kObject,
    kPattern,  // its last parts have *, ? or [..]
    kFolder,   // all objects below the address
  };
  Kind kind = kFolder;
  Address folder;    // that the objects' paths are relative to
  std::string name;  // the rest of the address; "": the folder itself
  std::vector<StoredObject> objects;
  std::shared_ptr<const Storage> storage;  // of `folder`
};

// Asks the store, in the process that may (StartStorageProcess). The objects of
// a pattern or a folder, of which there may be none, are as the store lists
// them.
absl::StatusOr<Listing> ListAddress(const Address& address);

// Calls `work` for 0 .. count - 1 on up to `threads` threads until one fails.
absl::Status InParallel(size_t count, size_t threads,
                        const std::function<absl::Status(size_t)>& work);

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_LISTING_H_
