// SPDX-License-Identifier: Apache-2.0
//
// A .tokens file. If the first byte is odd, the others' header and index get
// the checksums that they should have.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/crc32c.h"
#include "base/files.h"
#include "glog/logging.h"
#include "text/tokens/token_file.h"

namespace {

template <typename Number>
Number At(const std::string& bytes, size_t place) {
  Number value;
  std::memcpy(&value, &bytes[place], sizeof(value));
  return value;
}

void PutCrc(absl::string_view of, size_t place, std::string* bytes) {
  const uint32_t crc = capstan::Crc32c(of);
  std::memcpy(&(*bytes)[place], &crc, sizeof(crc));
}

// See Header() in token_file.cc.
void Repair(std::string* bytes) {
  if (bytes->size() < 64) return;
  const uint64_t room = At<uint64_t>(*bytes, 40) * At<uint32_t>(*bytes, 12);
  const uint64_t tail = 64 + (room + 7) / 8 * 8;
  if (room < bytes->size() && tail + 4 <= bytes->size()) {
    const uint64_t chunk = std::min<uint64_t>(room, bytes->size() - 64);
    PutCrc(absl::string_view(*bytes).substr(64, chunk), tail, bytes);
    PutCrc(absl::string_view(*bytes).substr(tail), 52, bytes);
  }
  PutCrc(absl::string_view(*bytes).substr(0, 60), 60, bytes);
}

std::shared_ptr<const capstan::MappedFile> Map(const std::string& bytes) {
  const int fd = memfd_create("tokens", MFD_CLOEXEC);
  PCHECK(fd >= 0);
  CHECK(capstan::WriteAll(fd, bytes, "tokens").ok());
  auto file = capstan::MappedFile::Open(fd, "fuzzed", {false, true});
  close(fd);
  CHECK(file.ok()) << file.status();
  return *std::move(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if ((data[0] & 1) != 0 && bytes.size() > 4) Repair(&bytes);
  const auto mapped = Map(bytes);
  capstan::text::TokenFile::CheckIsText(*mapped).IgnoreError();
  const auto file = capstan::text::TokenFile::Open(mapped);
  if (!file.ok()) {
    CHECK_EQ(file.status().message().rfind("fuzzed ", 0), 0u);
    return 0;
  }
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < (*file)->documents(); ++i) {
    const int64_t begin = (*file)->DocumentBegin(i);
    ids.resize((*file)->DocumentBegin(i + 1) - begin);
    const auto n = static_cast<int64_t>(ids.size());
    if (!(*file)->Read(begin, n, ids.data()).ok()) return 0;
    for (int64_t id : ids) {
      CHECK(id >= 0 && id < (*file)->info().vocab_size);
    }
  }
  return 0;
}
