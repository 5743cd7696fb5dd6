// SPDX-License-Identifier: Apache-2.0
//
// How a plugin or the core was built, as "name=value" lines. C++ objects can
// cross only if libtorch, absl, protobuf, stdlib, containers and sanitizer are
// equal. A plugin's sdk may be older than the trainer's; if equal, so must be
// headers, a hash of the SDK's without comments. The others inform people.
#ifndef CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_
#define CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_

#include <google/protobuf/stubs/common.h>
#include <torch/csrc/api/include/torch/version.h>

#include <string>

#include "absl/base/config.h"
#include "plugins/sdk/sdk_hash.h"  // CAPSTAN_SDK_HASH, made by the build

// SDK 1.CAPSTAN_SDK_MINOR (plugin.h): 1 added the state of objectives and
// models, 2 rollouts and curves of objectives, 3 rows divided among ranks, 4
// label smoothing, noise on embeddings, scores of texts, DoRA, 5 products in 8
// bits, 6 texts that begin and end in a batch, 7 samples with several rollouts,
// 8 forwards of rollouts with the initial weights; losses by row, scores and
// samples of rows that are divided; replicas of several ranks; strategies that
// wrap others.
#define CAPSTAN_SDK_MINOR 8

#define CAPSTAN_STRINGIFY_INNER(x) #x
#define CAPSTAN_STRINGIFY(x) CAPSTAN_STRINGIFY_INNER(x)

#ifdef NDEBUG
#define CAPSTAN_BUILD_KIND "release"
#else
#define CAPSTAN_BUILD_KIND "debug"
#endif

#if !defined(__GLIBCXX__)
#define CAPSTAN_STDLIB "not libstdc++"
#elif _GLIBCXX_USE_CXX11_ABI
#define CAPSTAN_STDLIB "libstdc++"
#else
#define CAPSTAN_STDLIB "libstdc++ with strings of before C++11"
#endif

#ifdef _GLIBCXX_DEBUG  // changes the layout of containers but not their names
#define CAPSTAN_CONTAINERS "debug"
#else
#define CAPSTAN_CONTAINERS "plain"
#endif

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CAPSTAN_ADDRESS_SANITIZER
#elif __has_feature(thread_sanitizer)
#define CAPSTAN_THREAD_SANITIZER
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(CAPSTAN_ADDRESS_SANITIZER)
#define CAPSTAN_SANITIZER "address"
#elif defined(__SANITIZE_THREAD__) || defined(CAPSTAN_THREAD_SANITIZER)
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
  "stdlib=" CAPSTAN_STDLIB                                         \
  "\n"                                                             \
  "containers=" CAPSTAN_CONTAINERS                                 \
  "\n"                                                             \
  "absl=" CAPSTAN_STRINGIFY(ABSL_LTS_RELEASE_VERSION) "\n"         \
  "protobuf=" CAPSTAN_STRINGIFY(GOOGLE_PROTOBUF_VERSION) "\n"      \
  "build=" CAPSTAN_BUILD_KIND                                      \
  "\n"                                                             \
  "sanitizer=" CAPSTAN_SANITIZER                                   \
  "\n"                                                             \
  "sdk=1." CAPSTAN_STRINGIFY(CAPSTAN_SDK_MINOR) "\n"               \
  "headers=" CAPSTAN_SDK_HASH "\n"

#endif  // CAPSTAN_PLUGINS_SDK_FINGERPRINT_H_
