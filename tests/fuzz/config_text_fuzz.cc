// SPDX-License-Identifier: Apache-2.0
//
// A run's config: its text, and behind a line "--set" an override a line. No
// plugin is in sight, so that their slots are errors.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static capstan::PluginHost* const host = new capstan::PluginHost({});
  capstan::ConfigContext context;
  context.host = host;
  context.caller_folder = "/caller";
  context.build_folder = "/build";
  // StrSplit finds no part in no text.
  if (size == 0) return 0;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> parts =
      absl::StrSplit(bytes, absl::MaxSplits("\n--set\n", 1));
  std::vector<std::string> overrides;
  if (parts.size() > 1) overrides = absl::StrSplit(parts[1], '\n');
  const auto loaded =
      capstan::ParseConfig(parts[0], "run.pbtxt", context, overrides);
  if (!loaded.ok()) {
    CHECK(!loaded.status().message().empty());
    return 0;
  }
  const std::string printed = capstan::PrintConfig(loaded->config);
  const auto again = capstan::ParseConfig(printed, "printed", context, {});
  CHECK(again.ok()) << again.status() << "\n" << printed;
  return 0;
}
