// SPDX-License-Identifier: Apache-2.0
//
// A file of torch.save's; or, if it begins with "p", a pickle behind that.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "desk/convert/pickle.h"
#include "desk/convert/torch_file.h"
#include "glog/logging.h"

namespace {

void ReadAll(const capstan::TorchFile& file) {
  using Kind = capstan::PickleValue::Kind;
  if (!file.root().is(Kind::kDict)) return;
  for (const capstan::PickleValue* const value : file.root().items) {
    file.Count(*value);
    const auto tensor = file.Tensor(*value);
    if (!tensor.ok()) continue;
    // Its elements are there, so the input's size limits them.
    std::string copy(tensor->bytes(), '\0');
    tensor->CopyTo(&copy[0]);
    if (const char* const data = tensor->contiguous()) {
      CHECK(copy == absl::string_view(data, copy.size()));
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (!bytes.empty() && bytes[0] == 'p') {
    const auto pickle = capstan::ReadTorchPickle(bytes.substr(1));
    if (pickle.ok()) CHECK_LE((*pickle)->size(), size);
    return 0;
  }
  const auto file = capstan::TorchFile::Open(bytes);
  if (file.ok()) ReadAll(**file);
  return 0;
}
