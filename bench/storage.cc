// SPDX-License-Identifier: Apache-2.0
//
// Writes and reads a file of random bytes at an address of object storage and
// on the local disk: storage ADDRESS MIB FOLDER. Prints MB/s.
#include "host/storage/storage.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <random>
#include <string>

#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status.h"

namespace capstan {
namespace {

std::string RandomBytes(size_t bytes) {
  std::mt19937_64 random(1);
  std::string text(bytes, '\0');
  for (size_t i = 0; i + 8 <= bytes; i += 8) {
    const uint64_t word = random();
    text.replace(i, 8, reinterpret_cast<const char*>(&word), 8);
  }
  return text;
}

absl::StatusOr<std::string> Measure(const std::string& text, int64_t mib,
                                    const std::string& folder) {
  CAPSTAN_ASSIGN_OR_RETURN(const Address address, ParseAddress(text));
  CAPSTAN_ASSIGN_OR_RETURN(const auto storage, Storage::Open(address));
  const std::string bytes = RandomBytes(static_cast<size_t>(mib) << 20);
  const double mb = static_cast<double>(bytes.size()) / 1e6;
  const std::string file = folder + "/bytes";
  double began = MonotonicSeconds();
  const auto speed = [&] {
    const double seconds = MonotonicSeconds() - began;
    began = MonotonicSeconds();
    return mb / seconds;
  };
  CAPSTAN_RETURN_IF_ERROR(WriteWholeFile(file, bytes));
  const double disk_write = speed();
  CAPSTAN_RETURN_IF_ERROR(ReadWholeFile(file).status());
  const double disk_read = speed();
  CAPSTAN_RETURN_IF_ERROR(storage->Upload(file, "bytes"));
  const double up = speed();
  CAPSTAN_ASSIGN_OR_RETURN(const StoredObject object, storage->Stat("bytes"));
  began = MonotonicSeconds();
  CAPSTAN_RETURN_IF_ERROR(storage->Download({object}, folder + "/back"));
  const double down = speed();
  return absl::StrFormat(
      "disk: write %.0f, read %.0f; store: upload %.0f, download to disk %.0f "
      "MB/s\n",
      disk_write, disk_read, up, down);
}

int Main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "storage ADDRESS MIB FOLDER\n";
    return 2;
  }
  const auto done = InStorageProcess(
      [&] { return Measure(argv[1], std::atoll(argv[2]), argv[3]); });
  if (!done.ok()) {
    std::cerr << done.status().message() << "\n";
    return 1;
  }
  std::cout << *done;
  return 0;
}

}  // namespace
}  // namespace capstan

int main(int argc, char** argv) { return capstan::Main(argc, argv); }
