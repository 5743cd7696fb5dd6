// SPDX-License-Identifier: Apache-2.0
//
// What must be equal in a plugin and the core for C++ objects to cross the
// edge between them, as "name=value" lines in one string constant.
#ifndef CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_
#define CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_

#include <google/protobuf/stubs/common.h>
#include <torch/csrc/api/include/torch/version.h>

#include "absl/base/config.h"
#include "sdk_hash.h"  // CAPSTAN_SDK_HASH, made by the build

#define CAPSTAN_STRINGIFY_INNER(x) #x
#define CAPSTAN_STRINGIFY(x) CAPSTAN_STRINGIFY_INNER(x)

#ifdef NDEBUG
#define CAPSTAN_BUILD_KIND "release"
#else
#define CAPSTAN_BUILD_KIND "debug"
#endif

#if defined(__SANITIZE_ADDRESS__)
#define CAPSTAN_SANITIZER "address"
#elif defined(__SANITIZE_THREAD__)
#define CAPSTAN_SANITIZER "thread"
#else
#define CAPSTAN_SANITIZER "none"
#endif

#define CAPSTAN_FINGERPRINT \
  "libtorch=" TORCH_VERSION                                        \
  "\n"                                                             \
  "compiler=" __VERSION__                                          \
  "\n"                                                             \
  "c++=" CAPSTAN_STRINGIFY(__cplusplus) "\n"                       \
  "absl=" CAPSTAN_STRINGIFY(ABSL_LTS_RELEASE_VERSION) "\n"         \
  "protobuf=" CAPSTAN_STRINGIFY(GOOGLE_PROTOBUF_VERSION) "\n"      \
  "build=" CAPSTAN_BUILD_KIND                                      \
  "\n"                                                             \
  "sanitizer=" CAPSTAN_SANITIZER                                   \
  "\n"                                                             \
  "sdk=" CAPSTAN_SDK_HASH "\n"

#endif  // CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_
