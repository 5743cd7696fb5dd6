// SPDX-License-Identifier: Apache-2.0
//
// An access to a mapped page that its file no longer has raises SIGBUS. The
// handler puts zero pages there, so that the access returns, and notes the
// loss, which MappedFile::Check reports: no code has to unwind out of a signal.
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/open_to_read.h"
#include "base/status.h"

namespace capstan {

// What the handler knows of a mapping. Read by it without a lock, hence never
// freed, but used again.
struct MappedFile::Watch {
  std::atomic<uintptr_t> begin{0};  // 0: not in use
  std::atomic<uintptr_t> end{0};
  std::atomic<bool> lost{false};
  // Offset of the first page that was lost.
  std::atomic<uintptr_t> lost_from{0};
  const MappedFile* file = nullptr;  // guarded by the mutex
};

namespace {

using Watch = MappedFile::Watch;

struct Block {
  std::array<Watch, 64> watches;
  std::atomic<Block*> next{nullptr};
};

Block first_block;
std::mutex mutex;                // for whoever changes or names watches
std::atomic<int> lost_count{0};  // of files that are still mapped
struct sigaction previous;
uintptr_t page_bytes = 4096;

template <typename Use>
Watch* FindWatch(const Use& is_wanted) {
  for (Block* block = &first_block; block != nullptr;
       block = block->next.load(std::memory_order_acquire)) {
    for (Watch& watch : block->watches) {
      if (is_wanted(watch)) return &watch;
    }
  }
  return nullptr;
}

// Whether `place` is in a mapping, which has zeros from its page on now.
bool FillWithZeros(uintptr_t place) {
  Watch* const watch = FindWatch([place](const Watch& w) {
    const uintptr_t begin = w.begin.load(std::memory_order_acquire);
    return begin != 0 && place >= begin && place < w.end.load();
  });
  if (watch == nullptr) return false;
  const uintptr_t page = place / page_bytes * page_bytes;
  // To the end: what is behind a missing page is missing, too.
  if (mmap(reinterpret_cast<void*>(page), watch->end.load() - page, PROT_READ,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1,
           0) == MAP_FAILED) {
    return false;
  }
  if (!watch->lost.exchange(true)) {
    watch->lost_from.store(page - watch->begin.load());
    lost_count.fetch_add(1);
  }
  return true;
}

void OnBusError(int signal, siginfo_t* info, void* context) {
  const int error = errno;
  const bool filled = info->si_code == BUS_ADRERR &&
                      FillWithZeros(reinterpret_cast<uintptr_t>(info->si_addr));
  errno = error;
  if (filled) return;
  if ((previous.sa_flags & SA_SIGINFO) != 0) {
    previous.sa_sigaction(signal, info, context);
  } else if (previous.sa_handler != SIG_DFL && previous.sa_handler != SIG_IGN) {
    previous.sa_handler(signal);
  } else {
    // Not ours: it ends the process, as it would without us.
    struct sigaction standard = {};
    standard.sa_handler = SIG_DFL;
    sigaction(signal, &standard, nullptr);
    raise(signal);
  }
}

void InstallHandler() {
  page_bytes = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  struct sigaction action = {};
  action.sa_sigaction = OnBusError;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigemptyset(&action.sa_mask);
  sigaction(SIGBUS, &action, &previous);
}

Watch* Add(const void* data, size_t bytes, const MappedFile* file) {
  static const bool installed = (InstallHandler(), true);
  static_cast<void>(installed);
  const std::lock_guard<std::mutex> lock(mutex);
  const auto is_free = [](const Watch& w) { return w.begin.load() == 0; };
  Watch* watch = FindWatch(is_free);
  if (watch == nullptr) {
    Block* last = &first_block;
    while (last->next.load() != nullptr) last = last->next.load();
    auto* const block = new Block();
    watch = &block->watches[0];
    last->next.store(block, std::memory_order_release);
  }
  const auto begin = reinterpret_cast<uintptr_t>(data);
  watch->file = file;
  watch->lost.store(false);
  // Readers may look behind the bytes, within the last page.
  watch->end.store((begin + bytes + page_bytes - 1) / page_bytes * page_bytes);
  watch->begin.store(begin, std::memory_order_release);
  return watch;
}

void Remove(Watch* watch) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (watch->lost.load()) lost_count.fetch_sub(1);
  watch->begin.store(0, std::memory_order_release);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(
    const std::string& path, const MapOptions& options) {
  struct stat info;
  CAPSTAN_ASSIGN_OR_RETURN(const int fd,
                           OpenToRead(path, " can't be opened", &info));
  auto mapped = OfDescriptor(fd, info, path, options);
  close(fd);
  return mapped;
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::Open(
    int fd, const std::string& path, const MapOptions& options) {
  struct stat info;
  if (fstat(fd, &info) != 0) return absl::ErrnoToStatus(errno, path);
  return OfDescriptor(fd, info, path, options);
}

absl::StatusOr<std::shared_ptr<const MappedFile>> MappedFile::OfDescriptor(
    int fd, const struct stat& info, const std::string& path,
    const MapOptions& options) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a file"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0 && !options.may_be_empty) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  void* data = nullptr;
  if (size > 0) {
    data = mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      return absl::ErrnoToStatus(errno, absl::StrCat(path, " can't be mapped"));
    }
    // Six times as fast from a disk; the ranks of a host share the page cache.
    if (options.in_order) madvise(data, size, MADV_SEQUENTIAL);
  }
  return std::shared_ptr<const MappedFile>(new MappedFile(
      path, absl::string_view(static_cast<const char*>(data), size),
      info.st_dev, info.st_ino));
}

MappedFile::MappedFile(std::string path, absl::string_view bytes,
                       uint64_t device, uint64_t inode)
    : path_(std::move(path)),
      bytes_(bytes),
      device_(device),
      inode_(inode),
      watch_(bytes.empty() ? nullptr : Add(bytes.data(), bytes.size(), this)) {}

MappedFile::~MappedFile() {
  if (watch_ == nullptr) return;
  Remove(watch_);
  munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::ExpectRepeatedReads() const {
  if (bytes_.empty()) return;
  auto* const data = const_cast<char*>(bytes_.data());
  madvise(data, bytes_.size(), MADV_NORMAL);
  madvise(data, bytes_.size(), MADV_WILLNEED);
}

absl::Status MappedFile::Check() const {
  if (watch_ == nullptr) return absl::OkStatus();
  if (watch_->lost.load()) {
    return absl::DataLossError(absl::StrCat(
        path_, " lost its bytes from ", watch_->lost_from.load(),
        " on while it was read: it became shorter, or its disk failed"));
  }
  // What is missing of the last page reads as zeros, without a signal. Another
  // file of this name says nothing about the one that is mapped.
  struct stat info;
  if (stat(path_.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_ &&
      static_cast<uint64_t>(info.st_size) < bytes_.size()) {
    return absl::DataLossError(
        absl::StrCat(path_, " became shorter while it was read: it has ",
                     info.st_size, " bytes, had ", bytes_.size()));
  }
  return absl::OkStatus();
}

void ForgetMapped(const void* data, size_t bytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + page - 1) / page * page;
  const uintptr_t end = (address + bytes) / page * page;
  if (begin < end) {
    madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
  }
}

absl::Status MappedFile::CheckAll() {
  if (lost_count.load(std::memory_order_relaxed) == 0) return absl::OkStatus();
  const std::lock_guard<std::mutex> lock(mutex);
  const Watch* const lost = FindWatch(
      [](const Watch& w) { return w.begin.load() != 0 && w.lost.load(); });
  return lost == nullptr ? absl::OkStatus() : lost->file->Check();
}

}  // namespace capstan
