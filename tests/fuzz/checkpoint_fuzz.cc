// SPDX-License-Identifier: Apache-2.0
//
// A checkpoint's manifest.json, whose checksum is made to match, or, if the
// bytes don't begin with '{', a file of state.
#include <ATen/ops/empty.h>

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/crc32c.h"
#include "base/json.h"
#include "tests/fuzz/input_folder.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/state_file.h"

namespace {

using Json = nlohmann::ordered_json;

std::string WithChecksum(absl::string_view text) {
  Json json = capstan::ParseJson<Json>(text);
  if (!json.is_object()) return std::string(text);
  json.erase("crc32c");
  json["crc32c"] = absl::StrFormat("%08x", capstan::Crc32c(json.dump()));
  return json.dump(1);
}

void ReadState(const capstan::InputFolder& folder, absl::string_view bytes) {
  folder.Write("state.safetensors", bytes);
  capstan::ManifestRange range;
  range.kind = "master";
  range.parameter = "w";
  range.length = 2;
  range.dtype = "F32";
  // Of 8 zeros.
  range.crc32c = {capstan::Crc32c(std::string(8, '\0'))};
  capstan::ManifestFile file;
  file.name = "state.safetensors";
  file.bytes = static_cast<int64_t>(bytes.size());
  file.ranges = {range};
  const auto state = capstan::StateFile::Open(folder.path(), file);
  if (!state.ok() || !(*state)->Check(range).ok()) return;
  const at::Tensor out = at::empty({2});
  (*state)->Read(range, 0, out).IgnoreError();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const capstan::InputFolder folder;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (bytes.empty() || bytes[0] != '{') {
    ReadState(folder, bytes);
    return 0;
  }
  const std::string path =
      folder.Write(capstan::kManifestFile, WithChecksum(bytes));
  capstan::ReadManifest(folder.path()).status().IgnoreError();
  // A rank's note is one of the manifest's files.
  capstan::ReadManifestFile(path).status().IgnoreError();
  return 0;
}
