// SPDX-License-Identifier: Apache-2.0
//
// config.json of a model's folder, or adapter_config.json of an adapter's: both
// are asked.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "plugins/model/decoder/decoder_config.h"
#include "plugins/model/decoder/family.h"
#include "plugins/sdk/lib/lora.h"
#include "tests/fuzz/input_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const capstan::InputFolder folder;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  folder.Write("config.json", bytes);
  folder.Write("adapter_config.json", bytes);
  const auto config = capstan::decoder::ReadFolder(folder.path());
  // Products of sizes that no memory holds are found by the plan.
  if (config.ok()) capstan::decoder::ParameterSpecs(*config);
  const auto spec = capstan::ReadAdapterConfig(folder.path());
  if (spec.ok()) capstan::AdapterConfigJson(*spec, "base");
  return 0;
}
