// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TESTS_STORAGE_S3_SERVER_H_
#define CAPSTAN_TESTS_STORAGE_S3_SERVER_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>

#include "tests/storage/faulty_proxy.h"

namespace capstan {

// A server that speaks S3 (`rclone serve s3`) over a folder of the test's own,
// with one bucket, "bucket", behind a proxy that can disturb it.
class S3Server {
 public:
  // Whether rclone could be fetched; if not, the test is to be skipped.
  static bool Available();

  S3Server();
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  // Kills it at once; Start has it serve the same objects again.
  void Kill();
  void Start();

  // Makes or replaces an object.
  void Put(const std::string& key, const std::string& bytes);

  FaultyProxy& proxy() { return *proxy_; }
  // What its clients need, with caches below `storage_folder`.
  std::map<std::string, std::string> Environment(
      const std::string& storage_folder) const;
  // The folder that holds the bucket's objects as files. rclone doesn't see
  // what others write there: use Put.
  std::string Objects() const { return root_ + "/bucket"; }

 private:
  const std::string root_;
  const int port_;
  pid_t pid_ = -1;
  std::unique_ptr<FaultyProxy> proxy_;
};

}  // namespace capstan

#endif  // CAPSTAN_TESTS_STORAGE_S3_SERVER_H_
