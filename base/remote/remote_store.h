// SPDX-License-Identifier: Apache-2.0
//
// Objects at addresses (s3://..) for readers, which lie below what speaks with
// stores.
#ifndef CAPSTAN_BASE_REMOTE_REMOTE_STORE_H_
#define CAPSTAN_BASE_REMOTE_REMOTE_STORE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

struct RemoteObject {
  std::string name;  // relative to the folder
  int64_t bytes = 0;
  std::string version;  // changes when the object does
};

struct RemoteFolder {
  std::string address;
  std::vector<RemoteObject> objects;  // by name
};

// A part of an object, on its way to the same place of a file.
struct RemotePart {
  std::string name;
  int64_t object_bytes = 0;
  int64_t offset = 0;
  int64_t bytes = 0;
  std::string file;  // which is there
};

// Reads the objects of a folder, by a process of its own. One thread at a time.
class RemoteReader {
 public:
  virtual ~RemoteReader();
  // Several parts at once. Errors name the object.
  virtual absl::Status Fetch(const std::vector<RemotePart>& parts) = 0;
};

class RemoteStore {
 public:
  virtual ~RemoteStore();
  virtual bool IsAddress(absl::string_view text) const = 0;
  // What an address stands for: an object, all below a folder, or a pattern.
  virtual absl::StatusOr<RemoteFolder> List(
      const std::string& address) const = 0;
  virtual absl::StatusOr<std::unique_ptr<RemoteReader>> Open(
      const std::string& folder) const = 0;
  // Where copies may lie, and how many bytes they may have.
  virtual std::string LocalFolder() const = 0;
  virtual int64_t LocalBytes() const = 0;
};

// Null: this program has none.
const RemoteStore* TheRemoteStore();
// Of a static object, before main.
void SetRemoteStore(const RemoteStore* store);

}  // namespace capstan

#endif  // CAPSTAN_BASE_REMOTE_REMOTE_STORE_H_
