// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/shm/shm_segment.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace capstan {
namespace {

struct Header {
  // So that a stale address can't lead to some other file.
  uint64_t nonce;
  int64_t ranks;
};

constexpr int64_t kPage = 4096;

int64_t SlotsBegin(int ranks) {
  const int64_t states =
      static_cast<int64_t>(sizeof(ShmRankState)) * (1 + ranks);
  return (states + kPage - 1) / kPage * kPage;
}

absl::Status SystemError(absl::string_view call) {
  return absl::ResourceExhaustedError(
      absl::StrCat("no shared memory: ", call, ": ", strerror(errno)));
}

}  // namespace

absl::Status ShmSegment::Map(int fd, int ranks) {
  bytes_ = SlotsBegin(ranks) + ranks * kShmSlots * kShmSlotBytes;
  void* memory =
      mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return SystemError("mmap");
  memory_ = memory;
  // The first place among the states is the header's.
  states_ = static_cast<ShmRankState*>(memory) + 1;
  slots_ = static_cast<char*>(memory) + SlotsBegin(ranks);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Create(int ranks) {
  if (ranks > kShmMaxRanks) {
    return absl::OutOfRangeError(
        absl::StrCat("shared memory is for up to ", kShmMaxRanks, " ranks"));
  }
  auto segment = absl::WrapUnique(new ShmSegment);
  segment->fd_ = memfd_create("capstan", MFD_CLOEXEC);
  if (segment->fd_ < 0) return SystemError("memfd_create");
  const int64_t bytes = SlotsBegin(ranks) + ranks * kShmSlots * kShmSlotBytes;
  if (ftruncate(segment->fd_, bytes) != 0) return SystemError("ftruncate");
  CAPSTAN_RETURN_IF_ERROR(segment->Map(segment->fd_, ranks));
  std::random_device random;
  const uint64_t nonce = (static_cast<uint64_t>(random()) << 32) | random();
  new (segment->memory_) Header{nonce, ranks};
  // The file begins as zeros, which is what the states begin with.
  segment->address_ = absl::StrCat(getpid(), " ", segment->fd_, " ", nonce);
  return segment;
}

absl::StatusOr<std::unique_ptr<ShmSegment>> ShmSegment::Open(
    const std::string& address, int ranks) {
  const std::vector<std::string> parts = absl::StrSplit(address, ' ');
  int pid = 0;
  int number = 0;
  uint64_t nonce = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[0], &pid) ||
      !absl::SimpleAtoi(parts[1], &number) ||
      !absl::SimpleAtoi(parts[2], &nonce)) {
    return absl::InvalidArgumentError(
        absl::StrCat("no address of shared memory: '", address, "'"));
  }
  const std::string path = absl::StrCat("/proc/", pid, "/fd/", number);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) return SystemError(path);
  auto segment = absl::WrapUnique(new ShmSegment);
  segment->fd_ = fd;
  Header header = {};
  if (pread(fd, &header, sizeof(header), 0) != sizeof(header) ||
      header.nonce != nonce || header.ranks != ranks) {
    return absl::NotFoundError(
        absl::StrCat(path, " isn't the group's shared memory"));
  }
  CAPSTAN_RETURN_IF_ERROR(segment->Map(fd, ranks));
  segment->address_ = address;
  return segment;
}

ShmSegment::~ShmSegment() {
  CloseFile();
  if (memory_ != nullptr) munmap(memory_, bytes_);
}

void ShmSegment::CloseFile() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

}  // namespace capstan
