// SPDX-License-Identifier: Apache-2.0
//
// Object storage by address: s3://BUCKET/KEY, gs://BUCKET/KEY,
// az://CONTAINER/BLOB. docs/storage.md is the user's page.
#ifndef CAPSTAN_HOST_STORAGE_STORAGE_H_
#define CAPSTAN_HOST_STORAGE_STORAGE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/confined_child.h"
#include "host/storage/store.h"

namespace capstan {

struct Address {
  std::string scheme;  // "s3"
  std::string bucket;
  std::string key;  // without "/" at its ends; "": the whole bucket

  std::string path() const { return key.empty() ? bucket : bucket + "/" + key; }
  std::string text() const { return scheme + "://" + path(); }
};

// Whether `text` begins as an address does.
bool IsAddress(absl::string_view text);

// An error says what is wrong without repeating what may be a secret.
absl::StatusOr<Address> ParseAddress(absl::string_view text);

// CAPSTAN_STORAGE_FOLDER, or $XDG_CACHE_HOME/capstan/storage, or
// ~/.cache/capstan/storage: where the cache is, and where runs whose output_dir
// is an address work.
std::string StorageFolder();

// A name for a file of what lies at an address: readable, and another for each
// address of each store (AWS_ENDPOINT_URL, AZURE_STORAGE_ACCOUNT).
std::string LocalName(const Address& address);

// The folder in which the run of `output_dir`, an address, works. None lies in
// another's.
std::string WorkingFolder(const Address& output_dir);

// `text` of a client without secrets: values of variables, and what follows the
// "?" of a URL, which may be a signature.
std::string WithoutSecrets(std::string text);

// The objects below an address. A call that fails for what may pass (a lost
// connection, a busy server) is tried again, with growing pauses of random
// length, until CAPSTAN_STORAGE_SECONDS (default: 120) have gone by since it
// first failed. Errors begin with the address: NOT_FOUND, PERMISSION_DENIED
// (refused, which includes a wrong bucket) or UNAVAILABLE. Thread-safe. Keys
// are relative to the address.
class Storage {
 public:
  // Opens libcapstan_storage.so, and starts threads: call it in a process of
  // its own (InStorageProcess).
  static absl::StatusOr<std::unique_ptr<Storage>> Open(const Address& address);
  // For tests: any store.
  Storage(Address address, std::unique_ptr<ObjectStore> store,
          double patience_seconds)
      : address_(std::move(address)),
        store_(std::move(store)),
        patience_seconds_(patience_seconds) {}

  const Address& address() const { return address_; }
  // The objects below the address and `folder`, which may be "". Their paths
  // are relative to the address.
  absl::StatusOr<std::vector<StoredObject>> List(
      const std::string& folder) const;
  absl::StatusOr<StoredObject> Stat(const std::string& key) const;
  absl::Status Read(const StoredObject& object, int64_t offset, int64_t size,
                    char* to) const;
  // Makes files of objects that List or Stat gave, by their paths below
  // `folder`, on disk; reads several parts at once.
  absl::Status Download(const std::vector<StoredObject>& objects,
                        const std::string& folder) const;
  // Makes or replaces an object, which appears when it is complete.
  absl::Status Write(const std::string& key, absl::string_view bytes) const;
  absl::Status Upload(const std::string& file, const std::string& key) const;
  absl::Status Delete(const std::string& key) const;
  // All below `folder`, which isn't "".
  absl::Status DeleteFolder(const std::string& folder) const;

  // Lines of what is tried again go to `note`; default: none.
  void set_note(std::function<void(const std::string&)> note) {
    note_ = std::move(note);
  }

 private:
  std::string PathOf(const std::string& key) const;
  absl::Status Call(absl::string_view what, const std::string& key,
                    const std::function<StoreResult()>& call) const;

  const Address address_;
  const std::unique_ptr<ObjectStore> store_;
  const double patience_seconds_;
  std::function<void(const std::string&)> note_;
};

// Libraries of object storage start threads, which ranks that are forked later
// must not inherit: this forks a process in which `serve` may use them. It ends
// with this one.
absl::StatusOr<std::unique_ptr<ConfinedChild>> StartStorageProcess(
    const std::function<void(const ConfinedChild::Parent&)>& serve);

// Runs `job` in such a process and returns its result.
absl::StatusOr<std::string> InStorageProcess(
    const std::function<absl::StatusOr<std::string>()>& job);

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_STORAGE_H_
