// SPDX-License-Identifier: Apache-2.0
#include "host/storage/listing.h"

#include <fnmatch.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>
#include <utility>

#include "base/status.h"

namespace capstan {
namespace {

// The part before the last '/' that stands before `end` becomes the folder.
Listing CutAt(const Address& address, size_t end) {
  const size_t slash = address.key.rfind('/', end);
  const bool none = slash == std::string::npos;
  Listing listing;
  listing.folder = address;
  listing.folder.key = none ? "" : address.key.substr(0, slash);
  listing.name = none ? address.key : address.key.substr(slash + 1);
  return listing;
}

}  // namespace

absl::StatusOr<Listing> ListAddress(const Address& address) {
  const size_t wildcard = address.key.find_first_of("*?[");
  if (wildcard != std::string::npos) {
    Listing listing = CutAt(address, wildcard);
    listing.kind = Listing::kPattern;
    CAPSTAN_ASSIGN_OR_RETURN(listing.storage, Storage::Open(listing.folder));
    CAPSTAN_ASSIGN_OR_RETURN(auto all, listing.storage->List(""));
    for (StoredObject& object : all) {
      if (fnmatch(listing.name.c_str(), object.path.c_str(), FNM_PATHNAME) ==
          0) {
        listing.objects.push_back(std::move(object));
      }
    }
    return listing;
  }
  if (!address.key.empty()) {
    Listing listing = CutAt(address, std::string::npos);
    listing.kind = Listing::kObject;
    CAPSTAN_ASSIGN_OR_RETURN(listing.storage, Storage::Open(listing.folder));
    absl::StatusOr<StoredObject> object = listing.storage->Stat(listing.name);
    if (object.ok()) {
      listing.objects.push_back(*std::move(object));
      return listing;
    }
    if (!absl::IsNotFound(object.status())) return object.status();
  }
  Listing listing;
  listing.folder = address;
  CAPSTAN_ASSIGN_OR_RETURN(listing.storage, Storage::Open(address));
  CAPSTAN_ASSIGN_OR_RETURN(listing.objects, listing.storage->List(""));
  return listing;
}

absl::Status InParallel(size_t count, size_t threads,
                        const std::function<absl::Status(size_t)>& work) {
  std::atomic<size_t> next{0};
  std::mutex mutex;
  absl::Status first;
  const auto run = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      const absl::Status status = work(i);
      if (status.ok()) continue;
      next = count;
      const std::lock_guard<std::mutex> lock(mutex);
      first.Update(status);
    }
  };
  std::vector<std::thread> running;
  for (size_t i = 1; i < std::min(count, threads); ++i) {
    running.emplace_back(run);
  }
  run();
  for (std::thread& thread : running) thread.join();
  return first;
}

}  // namespace capstan
