// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DATASETS_STREAM_REMOTE_SHARDS_H_
#define CAPSTAN_DATASETS_STREAM_REMOTE_SHARDS_H_

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/remote/remote_store.h"

namespace capstan::stream {

// Local copies of objects, of which only the parts that are read are fetched:
// files with holes, as long as the objects, in a folder that the processes of a
// host share. What isn't read for long is removed when they take more room than
// CAPSTAN_STORAGE_CACHE_GIB says. Thread-safe; may be used on both sides of a
// fork.
class RemoteShards {
 public:
  // Those of an address that `path` is. Their order is that of their names.
  static absl::StatusOr<std::unique_ptr<RemoteShards>> List(
      const std::string& path);

  struct Part {
    int64_t object = 0;
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  const std::vector<RemoteObject>& objects() const { return folder_.objects; }
  std::string AddressOf(int64_t object) const;
  // Of the local copy.
  const std::string& FileOf(int64_t object) const { return files_[object]; }

  // Makes the copies, and fetches what isn't there yet, all of it at once, and
  // of parts that aren't there also the next MiB, which is read soon.
  absl::Status Ensure(const std::vector<Part>& parts);
  // Ends the processes that fetch.
  void EndHelpers();
  ~RemoteShards();

 private:
  explicit RemoteShards(RemoteFolder folder);

  absl::Status Make(int64_t object);
  absl::Status Fetch(const std::vector<RemotePart>& parts);
  void MakeRoom() const;

  const RemoteFolder folder_;
  std::string local_;               // the folder of the copies
  std::vector<std::string> files_;  // by object
  std::atomic<int64_t> made_{0};    // copies
  std::mutex mutex_;
  pid_t owner_ = 0;  // the process that has opened them
  std::vector<std::unique_ptr<RemoteReader>> idle_;
};

}  // namespace capstan::stream

#endif  // CAPSTAN_DATASETS_STREAM_REMOTE_SHARDS_H_
