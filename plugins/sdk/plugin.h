// SPDX-License-Identifier: Apache-2.0
//
// The contract between the core and a plugin: a shared library, named after its
// config's package (capstan.ddp.Config is in libcapstan_ddp.so), that exports
// one constant, capstan_plugin_v1.
//
// A plugin built with SDK 1.n loads in trainers of 1.n and later, since
//  - an interface that plugins implement keeps its functions and their order. A
//    new one takes the place of its first Room, whose slot in an older plugin's
//    vtable then means the new one's default (interfaces.cc);
//  - one that the trainer implements (ProcessGroup, Work, UnitRunner, Flags,
//    Flag, CommandHost) grows at its end, and so does a struct that the trainer
//    passes by reference;
//  - a struct that a plugin makes (StrategyPlan, LossSum, ..), that lies in an
//    array or is returned by value, and Part, GradientSink and WideGradientSink
//    stay as they are.
// CAPSTAN_SDK_MINOR then goes up. tests/plugins/growth_test holds this.
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
  const char* config_type;  // "capstan.ddp.Config" ("::" is read as ".")
  const char* doc;          // one line for `trainer plugins`
  const char* fingerprint;  // fingerprint.h; also in ELF section "capstan_fp"
  // Creates a plugin from its serialized config: *instance is a `Base*` of the
  // category (Strategy*, ..), owned by the caller. Never throws. Outside of the
  // trainer's own folder, a forked child without output first loads the library
  // and calls `create`; it is killed when that returns, or after 2 s (loading:
  // 30 s). So both run twice, and side effects that outlive a process must be
  // harmless when repeated.
  absl::Status (*create)(absl::string_view config, void** instance);
};

template <typename Base, typename T>
struct IsStatusOrPointerTo : std::false_type {};
template <typename Base, typename T>
struct IsStatusOrPointerTo<Base, absl::StatusOr<std::unique_ptr<T>>>
    : std::is_convertible<T*, Base*> {};

// Whether Impl::Create(config) returns a StatusOr<unique_ptr<T>>, T a Base.
template <typename Base, typename Impl, typename Config, typename = void>
struct HasCreate : std::false_type {};
template <typename Base, typename Impl, typename Config>
struct HasCreate<
    Base, Impl, Config,
    std::void_t<decltype(Impl::Create(std::declval<const Config&>()))>>
    : IsStatusOrPointerTo<Base, decltype(Impl::Create(
                                    std::declval<const Config&>()))> {};

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

// Use in one file of a plugin, at the namespace scope of Ddp:
//   CAPSTAN_PLUGIN(Strategy, Ddp, ::capstan::ddp::Config, "what it does");
#define CAPSTAN_PLUGIN(Category, Impl, ConfigType, doc_line) \
  CAPSTAN_PLUGIN_AS(#ConfigType, Category, Impl, ConfigType, doc_line)

// For a message with another C++ name: protobuf appends '_' to C++ keywords.
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
