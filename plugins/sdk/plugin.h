// SPDX-License-Identifier: Apache-2.0
//
// The contract between the core and a plugin. A plugin is a shared library
// named after the proto package of its config (capstan.ddp.Config is in
// libcapstan_ddp.so) that exports one constant, capstan_plugin_v1, defined by
// CAPSTAN_PLUGIN. The core reads the fingerprint before it runs any of the
// plugin's code.
//
// A plugin loads only in a trainer that was built from the same SDK headers.
#ifndef CAPSTAN_PLUGINS_SDK_PLUGIN_H_
#define CAPSTAN_PLUGINS_SDK_PLUGIN_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "plugins/sdk/fingerprint.h"

namespace capstan {

enum class PluginCategory : uint32_t {
  kStrategy = 1,
  kPrecision = 2,
  kDatasetReader = 3,
  kModel = 4,
  kObjective = 5,
  kOptimizer = 6,
  kCollector = 7,
  kCommand = 8,
  kPart = 9,
};

constexpr uint64_t kPluginMagic = 0x4e415453504143ULL;  // "CAPSTAN"

struct PluginDescriptor {
  uint64_t magic;
  PluginCategory category;
  // The config message, "capstan.ddp.Config" ("::" is read as ".").
  const char* config_type;
  // One line for `trainer plugins`.
  const char* doc;
  // "name=value" lines (fingerprint.h). Also stored in the ELF section
  // "capstan_fp", which the core reads before it loads the library.
  const char* fingerprint;
  // Creates a plugin from its serialized config. On success *instance is a
  // `Base*` of the category (Strategy*, Precision*, ..), owned by the caller.
  // Never throws. For plugins outside the trainer's own folder the library is
  // first loaded, and `create` called, in a forked child whose output is
  // dropped; the child is killed after 2 s of `create` (30 s of loading), or
  // when it returns. So both run twice, and a side effect that outlives a
  // process (a file, a licence) must be harmless when repeated.
  absl::Status (*create)(absl::string_view config, void** instance);
};

template <typename Base, typename T>
struct IsStatusOrPointerTo : std::false_type {};
template <typename Base, typename T>
struct IsStatusOrPointerTo<Base, absl::StatusOr<std::unique_ptr<T>>>
    : std::is_convertible<T*, Base*> {};

// Whether Impl::Create(config) returns an absl::StatusOr<std::unique_ptr<T>>
// with T derived from Base.
template <typename Base, typename Impl, typename Config, typename = void>
struct HasCreate : std::false_type {};
template <typename Base, typename Impl, typename Config>
struct HasCreate<
    Base, Impl, Config,
    std::void_t<decltype(Impl::Create(std::declval<const Config&>()))>>
    : IsStatusOrPointerTo<Base, decltype(Impl::Create(
                                    std::declval<const Config&>()))> {};

// The `create` function of a plugin class.
template <typename Base, typename Impl, typename Config>
absl::Status CreatePlugin(absl::string_view bytes, void** instance) {
  constexpr bool kIsBase = std::is_base_of<Base, Impl>::value;
  constexpr bool kHasCreate = HasCreate<Base, Impl, Config>::value;
  static_assert(kIsBase,
                "CAPSTAN_PLUGIN(Category, Impl, ..): the class Impl must "
                "derive, publicly, from capstan::Category");
  static_assert(kHasCreate || !kIsBase,
                "CAPSTAN_PLUGIN(Category, Impl, ConfigType, ..): the class "
                "Impl needs a public `static absl::StatusOr<std::unique_ptr<"
                "Impl>> Create(const ConfigType& config)`");
  if constexpr (kIsBase && kHasCreate) {
    try {
      Config config;
      if (!config.ParseFromArray(bytes.data(),
                                 static_cast<int>(bytes.size()))) {
        return absl::InternalError("the config's bytes do not parse");
      }
      auto made = Impl::Create(config);
      if (!made.ok()) return made.status();
      Base* base = made->release();
      *instance = base;
      return absl::OkStatus();
    } catch (...) {
      return CurrentExceptionToStatus();
    }
  } else {
    return absl::InternalError("");  // never compiled
  }
}

}  // namespace capstan

// Use at namespace scope in one file of a plugin:
//   CAPSTAN_PLUGIN(Strategy, Ddp, ::capstan::ddp::Config, "what it does");
// where Ddp is a class of the enclosing namespace with a static Create.
#define CAPSTAN_PLUGIN(Category, Impl, ConfigType, doc_line) \
  CAPSTAN_PLUGIN_AS(#ConfigType, Category, Impl, ConfigType, doc_line)

// The same for a config message whose C++ name differs: protobuf appends '_' to
// package components that are C++ keywords.
#define CAPSTAN_PLUGIN_AS(type_name, Category, Impl, ConfigType, doc_line) \
  static const char capstan_plugin_fingerprint[]                           \
      __attribute__((section("capstan_fp"))) = CAPSTAN_FINGERPRINT;        \
  extern "C" __attribute__((visibility("default")))                        \
  const ::capstan::PluginDescriptor capstan_plugin_v1 = {                  \
      ::capstan::kPluginMagic,                                             \
      ::capstan::PluginCategory::k##Category,                              \
      type_name,                                                           \
      doc_line,                                                            \
      capstan_plugin_fingerprint,                                          \
      &::capstan::CreatePlugin<::capstan::Category, Impl, ConfigType>,     \
  }

#endif  // CAPSTAN_PLUGINS_SDK_PLUGIN_H_
