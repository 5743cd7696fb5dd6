// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_STORAGE_STORE_SERVER_H_
#define CAPSTAN_TESTS_STORAGE_STORE_SERVER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/storage/faulty_proxy.h"

namespace capstan {

// What a store speaks.
enum class StoreKind { kS3, kGcs, kAzure };

// A store over a folder of the test's own, with one bucket, "bucket", behind a
// proxy that can disturb it: rclone's S3, an emulator of Google's, or, since
// nobody's can be had, our own of Azure's (azure_blobs.py).
class StoreServer {
 public:
  // Whether the programs could be fetched; if not, the test is to be skipped.
  static bool Available();

  explicit StoreServer(StoreKind kind);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  // Kills it at once; Start has it serve the same objects again.
  void Kill();
  void Start();

  // Makes or replaces an object; of S3 alone.
  void Put(const std::string& key, const std::string& bytes);

  FaultyProxy& proxy() { return *proxy_; }
  // "s3://bucket/", "gs://bucket/" or "az://bucket/".
  std::string address() const;
  // What its clients need, with caches below `storage_folder`.
  std::map<std::string, std::string> Environment(
      const std::string& storage_folder) const;
  // The folder that holds the bucket's objects as files. The servers don't see
  // what others write there.
  std::string Objects() const;

 private:
  std::vector<std::string> Command() const;

  const StoreKind kind_;
  const std::string root_;
  const int port_;
  pid_t pid_ = -1;
  std::unique_ptr<FaultyProxy> proxy_;
};

// For the names of tests.
inline std::ostream& operator<<(std::ostream& out, StoreKind kind) {
  return out << (kind == StoreKind::kS3    ? "s3"
                 : kind == StoreKind::kGcs ? "gs"
                                           : "az");
}

}  // namespace capstan

#endif  // CAPSTAN_TESTS_STORAGE_STORE_SERVER_H_
