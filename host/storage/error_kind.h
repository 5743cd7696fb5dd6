// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_HOST_STORAGE_ERROR_KIND_H_
#define CAPSTAN_HOST_STORAGE_ERROR_KIND_H_

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <string>

#include "host/storage/store.h"

namespace capstan {

// Whether `text` has `part` in it, in small or capital letters.
inline bool HasPart(const std::string& text, const std::string& part) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), part.begin(), part.end(),
                     same) != text.end();
}

// The kind of an error of Arrow's: by the errno value that some of its clients
// attach (0: none), and by what its messages quote of the stores' answers.
inline StoreResult::Kind KindOfError(const std::string& text, int error) {
  // A busy server's, though its status is 400.
  if (HasPart(text, "RequestTimeout") || HasPart(text, "REQUEST_TIMEOUT")) {
    return StoreResult::kPassing;
  }
  for (const char* refused : {"ACCESS_DENIED",
                              "INVALID_ACCESS_KEY_ID",
                              "SIGNATURE_DOES_NOT_MATCH",
                              "NO_SUCH_BUCKET",
                              "NoSuchBucket",
                              "INVALID_CLIENT_TOKEN_ID",
                              "UNRECOGNIZED_CLIENT",
                              "EXPIRED_TOKEN",
                              "ExpiredToken",
                              "INVALID_SIGNATURE",
                              "HTTP status 301",
                              "HTTP status 400",
                              "HTTP status 401",
                              "HTTP status 403",
                              "bucket does not exist",
                              "PERMISSION_DENIED",
                              "UNAUTHENTICATED",
                              "AuthenticationFailed",
                              "[Authorization",
                              "AuthorizationFailure",
                              "InsufficientAccountPermissions",
                              "InvalidAuthenticationInfo",
                              "KeyBasedAuthenticationNotPermitted",
                              "ContainerNotFound",
                              "InvalidResourceName"}) {
    if (HasPart(text, refused)) return StoreResult::kRefused;
  }
  // Of Arrow's own, when it asks for a bucket's region.
  if (HasPart(text, "Bucket '") && HasPart(text, "' not found")) {
    return StoreResult::kRefused;
  }
  if (error == EACCES || error == EPERM || error == EINVAL)
    return StoreResult::kRefused;
  if (error == ENOENT) return StoreResult::kMissing;
  // "Not a regular file": a marker of a folder, in Azure.
  for (const char* missing :
       {"Path does not exist", "No such file or directory", "No such directory",
        "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "Status(NOT_FOUND",
        "HTTP status 404", "BlobNotFound", "Not a regular file"}) {
    if (HasPart(text, missing)) return StoreResult::kMissing;
  }
  return StoreResult::kPassing;
}

}  // namespace capstan

#endif  // CAPSTAN_HOST_STORAGE_ERROR_KIND_H_
