// SPDX-License-Identifier: Apache-2.0
#include "desk/run_folder/line_follower.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace capstan {
namespace {

constexpr int64_t kChunk = int64_t{1} << 20;
constexpr size_t kLastBytes = 256;

// Reads up to `bytes` bytes; fewer at the file's end or after an error.
int64_t ReadUpTo(int fd, int64_t offset, int64_t bytes, char* out) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, out + done, bytes - done, offset + done);
    if (got <= 0) break;
    done += got;
  }
  return done;
}

}  // namespace

bool LineFollower::IsAnother(int fd, int64_t bytes, uint64_t inode) const {
  if (last_.empty()) return bytes < offset_;
  if (inode != inode_ || bytes < offset_) return true;
  std::string now(last_.size(), '\0');
  const auto size = static_cast<int64_t>(now.size());
  return ReadUpTo(fd, offset_ - size, size, now.data()) != size || now != last_;
}

bool LineFollower::Poll(const LineFunction& line,
                        const std::function<void()>& restart,
                        int64_t most_bytes) {
  const int fd = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return false;
  struct stat info = {};
  if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(fd);
    return false;
  }
  if (IsAnother(fd, info.st_size, info.st_ino)) {
    offset_ = 0;
    skipping_ = false;
    last_.clear();
    restart();
  }
  inode_ = info.st_ino;
  const int64_t first = offset_;
  std::string buffer;
  int64_t held = 0;  // bytes of `buffer`: from offset_ on
  while (offset_ + held < info.st_size && offset_ - first < most_bytes) {
    buffer.resize(held + kChunk + kReadableBehind);
    const int64_t got = ReadUpTo(fd, offset_ + held, kChunk, &buffer[held]);
    if (got == 0) break;
    const char* const end = &buffer[held + got];
    const char* begin = buffer.data();
    const char* search = begin + held;
    while (const auto* newline = static_cast<const char*>(
               std::memchr(search, '\n', end - search))) {
      if (!skipping_) {
        line(absl::string_view(begin, newline - begin),
             offset_ + (begin - buffer.data()));
      }
      skipping_ = false;
      begin = search = newline + 1;
    }
    int64_t done = begin - buffer.data();
    held += got - done;
    if (held > static_cast<int64_t>(kLongestLine)) {
      done += held;
      held = 0;
      skipping_ = true;
    }
    if (done > 0) {
      const auto keep = std::min<int64_t>(done, kLastBytes);
      last_.assign(buffer, done - keep, keep);
      offset_ += done;
      buffer.erase(0, done);
    }
  }
  close(fd);
  return offset_ - first >= most_bytes && offset_ < info.st_size;
}

}  // namespace capstan
