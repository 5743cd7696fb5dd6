// SPDX-License-Identifier: Apache-2.0
//
// One pass over a source's rows by all of the machine's cores.
#ifndef CAPSTAN_DATASETS_CHAT_MAP_ROWS_H_
#define CAPSTAN_DATASETS_CHAT_MAP_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/in_order.h"
#include "datasets/chat/source_file.h"

namespace capstan::chat {

struct RowPlaces {
  std::vector<RowPlace> rows;
  absl::Status end;  // the scanner's error behind them
};

// Passes what `make` makes of each piece of about `bytes` bytes to `take`, in
// the file's order.
template <typename Made>
absl::Status MapRows(
    const SourceFile& file, uint64_t bytes,
    const std::function<absl::StatusOr<Made>(const RowPlaces&)>& make,
    const std::function<absl::Status(Made)>& take) {
  RowScanner scanner(file.text);
  bool at_end = false;
  const auto next = [&]() -> absl::optional<RowPlaces> {
    if (at_end) return absl::nullopt;
    RowPlaces places;
    places.end = scanner.Next(bytes, &places.rows);
    at_end = !places.end.ok() || places.rows.empty();
    if (at_end && places.end.ok()) return absl::nullopt;
    return places;
  };
  // A file of one or two pieces isn't worth a thread.
  const uint64_t cores = std::max(1u, std::thread::hardware_concurrency());
  return MapInOrder<RowPlaces, Made>(
      static_cast<int>(std::min(cores, file.text.size() / bytes)), next, make,
      take);
}

}  // namespace capstan::chat

#endif  // CAPSTAN_DATASETS_CHAT_MAP_ROWS_H_
