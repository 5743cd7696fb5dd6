// SPDX-License-Identifier: Apache-2.0
//
// Object storage, by Arrow: what libcapstan_storage.so offers, which is opened
// when an address is named. It knows nothing of the rest; storage.h is for
// users.
#ifndef CAPSTAN_HOST_STORAGE_STORE_H_
#define CAPSTAN_HOST_STORAGE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace capstan {

inline constexpr char kStorageLibrary[] = "libcapstan_storage.so";
inline constexpr char kStorageSymbol[] = "capstan_open_store";

// How a call ended.
struct StoreResult {
  enum Kind {
    kOk,
    kMissing,  // there is no such object
    kRefused,  // wrong bucket, wrong key, no right: trying again won't help
    kPassing,  // the network, or a server that is busy
  };
  Kind kind = kOk;
  std::string text;  // why, in the store's words, without secrets
};

struct StoredObject {
  std::string path;  // BUCKET/KEY
  int64_t size = 0;
  // Changes when the object does: its ETag, or what else the store says.
  std::string version;
  double modified = 0.0;  // Unix seconds, in a listing; 0: unknown
};

// The objects of one store. Thread-safe.
class ObjectStore {
 public:
  virtual ~ObjectStore() = default;

  // The objects below BUCKET/FOLDER, at any depth, by path; none if there are
  // none.
  virtual StoreResult List(const std::string& folder,
                           std::vector<StoredObject>* objects) = 0;
  virtual StoreResult Stat(const std::string& path, StoredObject* object) = 0;
  // Reads exactly `size` bytes at `offset` of `object`, which Stat or List
  // gave.
  virtual StoreResult Read(const StoredObject& object, int64_t offset,
                           int64_t size, char* to) = 0;
  // Makes or replaces an object, which appears whole or not at all; a large one
  // goes up in several parts at a time.
  virtual StoreResult Write(const std::string& path, const char* bytes,
                            int64_t size) = 0;
  // OK if there is none.
  virtual StoreResult Delete(const std::string& path) = 0;
  // Removes what is still below BUCKET/FOLDER, with an empty object that some
  // clients keep in a folder's place. OK if there is none.
  virtual StoreResult DeleteFolder(const std::string& folder) = 0;
};

// kStorageSymbol: opens the store of `scheme` ("s3", "gs", "az") that holds
// `bucket`. Credentials and endpoints are those that the cloud's own tools take
// from environment and files. May start threads.
using OpenStore = StoreResult (*)(const std::string& scheme,
                                  const std::string& bucket,
                                  std::unique_ptr<ObjectStore>* store);

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_STORE_H_
