// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "base/npy.h"
#include "glog/logging.h"
#include "tests/fuzz/input_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const capstan::InputFolder folder;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto header = capstan::ParseNpyHeader(bytes);
  if (!header.ok()) return 0;
  CHECK_GE(header->elements(), 0);
  CHECK_LE(header->elements(), static_cast<int64_t>(size));
  const auto array = capstan::NpyArray::Open(folder.Write("a.npy", bytes));
  CHECK(array.ok()) << array.status();
  if ((*array)->type() != capstan::NpyType::kInt64) return 0;
  std::vector<int64_t> values(header->elements());
  (*array)->Read<int64_t>(0, header->elements(), values.data());
  return 0;
}
