// SPDX-License-Identifier: Apache-2.0
//
// A compressed file of rows: gzip, zstd, or neither.
#include <stdlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "datasets/chat/source_file.h"
#include "glog/logging.h"

namespace fs = std::filesystem;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kMost = 1 << 20;
  static const fs::path folder = [] {
    std::string path = fs::temp_directory_path() / "unpack_XXXXXX";
    PCHECK(mkdtemp(&path[0]) != nullptr);
    return fs::path(path);
  }();
  const std::string path = (folder / "rows").string();
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data), size);
  const auto source = capstan::chat::OpenSource(path, kMost);
  if (source.ok()) {
    CHECK(source->text.size() <= kMost || source->text.size() == size);
    CHECK_GT(capstan::chat::LineOf(source->text, source->text.size()), 0);
  } else {
    CHECK_EQ(source.status().message().rfind(path, 0), 0u);
  }
  fs::remove_all(folder);
  fs::create_directory(folder);
  return 0;
}
