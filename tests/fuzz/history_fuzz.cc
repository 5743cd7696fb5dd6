// SPDX-License-Identifier: Apache-2.0
//
// An HDF5 file of learning histories.
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "datasets/darkroom/history_file.h"
#include "glog/logging.h"
#include "tests/fuzz/scratch_folder.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using capstan::darkroom::HistoryReader;
  static const capstan::ScratchFolder folder;
  const std::string path = folder.Write(
      "a.hdf5", absl::string_view(reinterpret_cast<const char*>(data), size));
  const auto reader = HistoryReader::Open(path);
  if (!reader.ok()) return 0;
  const capstan::darkroom::Room room;
  (*reader)
      ->CheckVariant(capstan::darkroom::Variant::kGoals, room)
      .IgnoreError();
  for (const int task : (*reader)->tasks()) {
    const auto history = (*reader)->Read(task, room);
    if (!history.ok()) continue;
    CHECK_EQ(static_cast<int64_t>(history->actions.size()),
             history->steps * history->streams);
  }
  return 0;
}
