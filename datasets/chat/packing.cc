// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/packing.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan::chat {
namespace {

// Sorts items by descending length, stably. A counting sort.
std::vector<uint32_t> ByLength(absl::Span<const uint32_t> lengths,
                               uint32_t capacity) {
  std::vector<uint64_t> place(capacity + 2, 0);
  for (uint32_t length : lengths) ++place[capacity - length + 1];
  std::partial_sum(place.begin(), place.end(), place.begin());
  std::vector<uint32_t> order(lengths.size());
  for (size_t i = 0; i < lengths.size(); ++i) {
    order[place[capacity - lengths[i]]++] = static_cast<uint32_t>(i);
  }
  return order;
}

// The pack of each item; *count is the number of packs.
std::vector<uint32_t> Assign(absl::Span<const uint32_t> lengths,
                             uint32_t capacity, uint32_t* count) {
  std::vector<uint32_t> pack(lengths.size());
  std::vector<std::vector<uint32_t>> with_room(capacity + 1);
  std::set<uint32_t> rooms;  // sizes for which there are packs
  *count = 0;
  for (uint32_t item : ByLength(lengths, capacity)) {
    const auto best = rooms.lower_bound(lengths[item]);
    uint32_t room = capacity;
    if (best == rooms.end()) {
      pack[item] = (*count)++;
    } else {
      room = *best;
      pack[item] = with_room[room].back();
      with_room[room].pop_back();
      if (with_room[room].empty()) rooms.erase(best);
    }
    room -= lengths[item];
    if (room == 0) continue;
    if (with_room[room].empty()) rooms.insert(room);
    with_room[room].push_back(pack[item]);
  }
  return pack;
}

}  // namespace

Packs PackBestFit(absl::Span<const uint32_t> lengths, uint32_t capacity) {
  uint32_t count = 0;
  std::vector<uint32_t> pack = Assign(lengths, capacity, &count);
  // Renumbered by their first items.
  constexpr uint32_t kNone = std::numeric_limits<uint32_t>::max();
  std::vector<uint32_t> number(count, kNone);
  uint32_t next = 0;
  Packs packs;
  packs.begins.assign(count + 1, 0);
  for (uint32_t& p : pack) {
    if (number[p] == kNone) number[p] = next++;
    p = number[p];
    ++packs.begins[p + 1];
  }
  std::partial_sum(packs.begins.begin(), packs.begins.end(),
                   packs.begins.begin());
  std::vector<uint64_t> place(packs.begins.begin(), packs.begins.end() - 1);
  packs.items.resize(pack.size());
  for (size_t i = 0; i < pack.size(); ++i) {
    packs.items[place[pack[i]]++] = static_cast<uint32_t>(i);
  }
  return packs;
}

namespace {

constexpr size_t kBuffer = 1 << 20;

absl::Status Broken(const std::string& path, absl::string_view why) {
  return absl::DataLossError(absl::StrCat(path, " can't be unpacked: ", why));
}

absl::Status Empty(const std::string& path) {
  return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
}

}  // namespace

absl::Status UnpackGzip(const std::string& from, HiddenFile* to) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(
      gzopen(from.c_str(), "rb"), gzclose);
  if (in == nullptr) return Broken(from, "it can't be opened");
  gzbuffer(in.get(), kBuffer);
  std::vector<char> buffer(kBuffer);
  bool any = false;
  while (true) {
    const int size = gzread(in.get(), buffer.data(), kBuffer);
    int error = Z_OK;
    const char* const message = gzerror(in.get(), &error);
    // For a truncated file, gzread returns the data before the end, and an
    // error.
    if (size < 0 || error != Z_OK) {
      return Broken(from,
                    error == Z_BUF_ERROR ? "its end is missing" : message);
    }
    if (size == 0) return any ? absl::OkStatus() : Empty(from);
    any = true;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), static_cast<size_t>(size))));
  }
}

absl::Status UnpackZstd(const std::string& from, HiddenFile* to) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file,
                           MappedFile::Open(from));
  const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(
      ZSTD_createDCtx(), ZSTD_freeDCtx);
  std::vector<char> buffer(kBuffer);
  ZSTD_inBuffer input = {file->bytes().data(), file->bytes().size(), 0};
  size_t left = 0;  // 0: at the end of a frame
  bool full = false;
  bool any = false;
  while (input.pos < input.size || full) {
    ZSTD_outBuffer output = {buffer.data(), buffer.size(), 0};
    left = ZSTD_decompressStream(context.get(), &output, &input);
    if (ZSTD_isError(left)) return Broken(from, ZSTD_getErrorName(left));
    any = any || output.pos > 0;
    CAPSTAN_RETURN_IF_ERROR(
        to->Write(absl::string_view(buffer.data(), output.pos)));
    full = output.pos == output.size && left != 0;
  }
  if (left != 0) return Broken(from, "its end is missing");
  return any ? absl::OkStatus() : Empty(from);
}

}  // namespace capstan::chat
