// SPDX-License-Identifier: Apache-2.0
//
// A .safetensors file, or, if the text begins with '{', an index of shards.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "glog/logging.h"
#include "plugins/sdk/lib/safetensors.h"
#include "tests/fuzz/input_folder.h"

namespace {

constexpr int64_t kMostRead = 4096;  // of a tensor's elements

void ReadAll(const capstan::SafetensorsReader& reader) {
  std::vector<float> values(kMostRead);
  for (const auto& [name, entry] : reader.tensors()) {
    const int64_t count = std::min(entry.numel, kMostRead);
    reader.ReadFloats(name, 0, count, values.data()).IgnoreError();
    reader.ReadFloats(name, entry.numel - count, count, values.data())
        .IgnoreError();
    CHECK(!reader.ReadFloats(name, 1, entry.numel, values.data()).ok());
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const capstan::InputFolder folder;
  static const std::string shard = folder.Write(
      "a.safetensors", absl::string_view("\x38\0\0\0\0\0\0\0"
                                         R"({"t":{"dtype":"F32","shape":[2],)"
                                         R"("data_offsets":[0,8]}}      )"
                                         "12345678",
                                         8 + 56 + 8));
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const bool is_index = !bytes.empty() && bytes[0] == '{';
  const std::string path = folder.Write(
      is_index ? "model.safetensors.index.json" : "one.safetensors", bytes);
  const auto reader =
      capstan::SafetensorsReader::Open(is_index ? folder.path() : path);
  if (reader.ok()) ReadAll(**reader);
  return 0;
}
