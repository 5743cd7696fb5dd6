// SPDX-License-Identifier: Apache-2.0
#include "tests/golden/qlora_folder.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "plugins/sdk/lib/safetensors.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

std::string BytesOf(const TensorEntry& entry) {
  return std::string(entry.data, static_cast<size_t>(entry.bytes));
}

}  // namespace

void WriteQloraFolder(const std::string& golden, const std::string& folder,
                      const std::string& dtype) {
  fs::remove_all(folder);
  fs::create_directories(folder);
  auto base = SafetensorsReader::Open(golden + "/base");
  auto packed = SafetensorsReader::Open(golden + "/nf4.safetensors");
  ASSERT_TRUE(base.ok() && packed.ok());
  struct Part {
    c10::ScalarType dtype;
    std::vector<int64_t> shape;
    std::string bytes;
  };
  std::map<std::string, Part> parts;
  const auto put = [&](const std::string& name, const TensorEntry& entry) {
    parts[name] = {entry.dtype, entry.shape, BytesOf(entry)};
  };
  for (const auto& [name, entry] : (*base)->tensors()) {
    const auto& from = (*packed)->tensors();
    if (from.count(name + ".packed") == 0) {
      put(name, entry);
      continue;
    }
    put(name, from.at(name + ".packed"));
    put(name + ".absmax", from.at(name + ".absmax_quantised"));
    put(name + ".quant_map", from.at(name + ".code"));
    put(name + ".nested_absmax", from.at(name + ".absmax_absmax"));
    put(name + ".nested_quant_map", from.at(name + ".absmax_code"));
    float offset = 0.0f;
    std::memcpy(&offset, from.at(name + ".offset").data, 4);
    const Json state = {{"quant_type", "nf4"},     {"blocksize", 64},
                        {"dtype", dtype},          {"shape", entry.shape},
                        {"nested_blocksize", 256}, {"nested_dtype", "float32"},
                        {"nested_offset", offset}};
    const std::string text = state.dump();
    parts[name + ".quant_state.bitsandbytes__nf4"] = {
        c10::ScalarType::Byte, {static_cast<int64_t>(text.size())}, text};
  }
  auto writer = SafetensorsWriter::Create(folder + "/model.safetensors");
  ASSERT_TRUE(writer.ok()) << writer.status();
  for (const auto& [name, part] : parts) {
    (*writer)->Declare(name, part.dtype, part.shape);
  }
  for (const auto& [name, part] : parts) {
    ASSERT_TRUE((*writer)->Append(part.bytes.data(), part.bytes.size()).ok());
  }
  ASSERT_TRUE((*writer)->Close().ok());
  Json config = Json::parse(std::ifstream(golden + "/base/config.json"));
  config["quantization_config"] = {{"quant_method", "bitsandbytes"},
                                   {"load_in_4bit", true},
                                   {"bnb_4bit_quant_type", "nf4"},
                                   {"bnb_4bit_use_double_quant", true}};
  std::ofstream(folder + "/config.json") << config.dump(2);
}

}  // namespace capstan
