// SPDX-License-Identifier: Apache-2.0
//
// The contract between the core and a plugin. A plugin is a shared library
// named after the proto package of its config (capstan.ddp.Config lives in
// libcapstan_ddp.so) that exports one constant, capstan_plugin_v1, by
// CAPSTAN_PLUGIN. The core reads that data before it runs any of the plugin's
// code, and refuses a library that was built for another core.
#ifndef CAPSTAN_PLUGINS_SDK_PLUGIN_H_
#define CAPSTAN_PLUGINS_SDK_PLUGIN_H_

#include <cstdint>
#include <exception>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "fingerprint.h"
#include "status.h"

namespace capstan {

enum class PluginCategory : uint32_t {
  kStrategy = 1,
  kPrecision = 2,
  kDatasetReader = 3,
  kModel = 4,
  kObjective = 5,
  kOptimizer = 6,
  kCollector = 7,
};

constexpr uint64_t kPluginMagic = 0x4e415453504143ULL;  // "CAPSTAN"
// Major: a plugin of another major version is refused. Minor: the core accepts
// plugins of its own minor version or an older one.
constexpr uint16_t kPluginApiMajor = 1;
constexpr uint16_t kPluginApiMinor = 0;

struct PluginDescriptor {
  uint64_t magic;
  uint32_t struct_size;
  uint16_t api_major;
  uint16_t api_minor;
  PluginCategory category;
  // The config message, "capstan.ddp.Config" ("::" is read as ".").
  const char* config_type;
  // One line for `trainer plugins`.
  const char* doc;
  // "name=value" lines, see fingerprint.h. Also in the ELF section
  // "capstan_fp", where the core reads it before it loads the library.
  const char* fingerprint;
  // Makes a plugin from its serialized config. On success *instance is a
  // `Base*` of the category (Strategy*, Precision*, ..), owned by the caller.
  // Never throws.
  absl::Status (*create)(absl::string_view config, void** instance);
};

// What `create` does for a plugin class with a `Create(const Config&)` that
// returns absl::StatusOr<std::unique_ptr<Impl>>.
template <typename Base, typename Impl, typename Config>
absl::Status CreatePlugin(absl::string_view bytes, void** instance) {
  try {
    Config config;
    if (!config.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
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
}

}  // namespace capstan

// At namespace scope in one file of a plugin:
//   CAPSTAN_PLUGIN(Strategy, Ddp, ::capstan::ddp::Config, "what it does");
// where Ddp is a class of the enclosing namespace with a static Create.
#define CAPSTAN_PLUGIN(Category, Impl, ConfigType, doc_line)           \
  static const char capstan_plugin_fingerprint[]                       \
      __attribute__((section("capstan_fp"))) = CAPSTAN_FINGERPRINT;    \
  extern "C" __attribute__((visibility("default")))                    \
  const ::capstan::PluginDescriptor capstan_plugin_v1 = {              \
      ::capstan::kPluginMagic,                                         \
      sizeof(::capstan::PluginDescriptor),                             \
      ::capstan::kPluginApiMajor,                                      \
      ::capstan::kPluginApiMinor,                                      \
      ::capstan::PluginCategory::k##Category,                          \
      #ConfigType,                                                     \
      doc_line,                                                        \
      capstan_plugin_fingerprint,                                      \
      &::capstan::CreatePlugin<::capstan::Category, Impl, ConfigType>, \
  }

#endif  // CAPSTAN_PLUGINS_SDK_PLUGIN_H_
