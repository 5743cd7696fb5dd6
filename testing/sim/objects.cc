// SPDX-License-Identifier: Apache-2.0
#include "testing/sim/objects.h"

#include <errno.h>
#include <string.h>
#include <sys/signalfd.h>

#include <algorithm>

namespace capstan::sim {
namespace {

constexpr size_t kPipeBytes = 64 << 10;

size_t Take(std::string* from, char* out, size_t size) {
  const size_t n = std::min(size, from->size());
  memcpy(out, from->data(), n);
  from->erase(0, n);
  return n;
}

}  // namespace

int OpenFile::Stat(struct stat* info) {
  *info = {};
  info->st_mode = S_IFIFO | 0600;
  return 0;
}

ssize_t Console::Write(const char* bytes, size_t size) {
  if (!TheWorld()->tells()) return static_cast<ssize_t>(size);
  line_.append(bytes, size);
  for (size_t end; (end = line_.find('\n')) != std::string::npos;) {
    TheWorld()->Tell(Mine(), "prints \"" + line_.substr(0, end) + "\"");
    line_.erase(0, end + 1);
  }
  return static_cast<ssize_t>(size);
}

PipeEnd::PipeEnd(std::shared_ptr<PipeBuffer> buffer, bool writes)
    : buffer_(std::move(buffer)), writes_(writes) {
  (writes_ ? buffer_->writer : buffer_->reader) = this;
}

PipeEnd::~PipeEnd() {
  (writes_ ? buffer_->writer_gone : buffer_->reader_gone) = true;
  OpenFile* const other = writes_ ? buffer_->reader : buffer_->writer;
  (writes_ ? buffer_->writer : buffer_->reader) = nullptr;
  if (other != nullptr && !TheWorld()->ending()) other->changed.WakeAll();
}

ssize_t PipeEnd::Read(char* out, size_t size) {
  if (writes_) return -EBADF;
  if (buffer_->bytes.empty()) return buffer_->writer_gone ? 0 : -EAGAIN;
  const size_t n = Take(&buffer_->bytes, out, size);
  if (buffer_->writer != nullptr) buffer_->writer->changed.WakeAll();
  return static_cast<ssize_t>(n);
}

ssize_t PipeEnd::Write(const char* bytes, size_t size) {
  if (!writes_) return -EBADF;
  if (buffer_->reader_gone) return -EPIPE;
  const size_t room = kPipeBytes - std::min(kPipeBytes, buffer_->bytes.size());
  if (room == 0) return -EAGAIN;
  const size_t n = std::min(room, size);
  buffer_->bytes.append(bytes, n);
  buffer_->reader->changed.WakeAll();
  return static_cast<ssize_t>(n);
}

int PipeEnd::Ready() {
  if (writes_) {
    if (buffer_->reader_gone) return POLLERR | POLLOUT;
    return buffer_->bytes.size() < kPipeBytes ? POLLOUT : 0;
  }
  return (buffer_->bytes.empty() ? 0 : POLLIN) |
         (buffer_->writer_gone ? POLLHUP : 0);
}

ssize_t EventCounter::Read(char* out, size_t size) {
  if (size < sizeof(count_)) return -EINVAL;
  if (count_ == 0) return -EAGAIN;
  memcpy(out, &count_, sizeof(count_));
  count_ = 0;
  return sizeof(count_);
}

ssize_t EventCounter::Write(const char* bytes, size_t size) {
  uint64_t more = 0;
  if (size < sizeof(more)) return -EINVAL;
  memcpy(&more, bytes, sizeof(more));
  count_ += more;
  changed.WakeAll();
  return sizeof(more);
}

int SignalFile::Ready() {
  Mine()->signals.Add(Self());
  return (Mine()->pending & set_) != 0 ? POLLIN : 0;
}

ssize_t SignalFile::Read(char* out, size_t size) {
  signalfd_siginfo info = {};
  if (size < sizeof(info)) return -EINVAL;
  const uint64_t ready = Mine()->pending & set_;
  if (ready == 0) return -EAGAIN;
  const int bit = __builtin_ctzll(ready);
  Mine()->pending &= ~(uint64_t{1} << bit);
  info.ssi_signo = bit + 1;
  memcpy(out, &info, sizeof(info));
  return sizeof(info);
}

int MemoryFile::Stat(struct stat* info) {
  *info = {};
  info->st_mode = S_IFREG | 0600;
  info->st_size = region == nullptr ? 0 : static_cast<off_t>(region->bytes);
  return 0;
}

ssize_t TextFile::Read(char* out, size_t size) {
  const size_t n = std::min(size, text_.size() - at_);
  memcpy(out, text_.data() + at_, n);
  at_ += n;
  return static_cast<ssize_t>(n);
}

Held::Held(int fd) {
  auto& files = Mine()->files;
  if (fd < 0 || fd >= static_cast<int>(files.size())) return;
  if (files[fd] == nullptr) return;
  file_ = files[fd].get();
  Self()->held.push_back(files[fd]);
}

Held::~Held() {
  if (file_ == nullptr) return;
  auto& held = Self()->held;
  for (size_t i = held.size(); i-- > 0;) {
    if (held[i].get() != file_) continue;
    const std::shared_ptr<OpenFile> last = std::move(held[i]);
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(i));
    return;
  }
}

int NewDescriptor(std::shared_ptr<OpenFile> file, int least) {
  auto& files = Mine()->files;
  size_t fd = static_cast<size_t>(least);
  while (fd < files.size() && files[fd] != nullptr) ++fd;
  if (fd >= files.size()) files.resize(fd + 1);
  files[fd] = std::move(file);
  return static_cast<int>(fd);
}

int Await(OpenFile* file, int events, Time deadline) {
  World& world = *TheWorld();
  while (true) {
    world.BeginWait();
    if ((file->Ready() & (events | POLLERR | POLLHUP)) != 0) return 0;
    if (world.now() >= deadline) return -EAGAIN;
    file->changed.Add(Self());
    if (auto* const process = dynamic_cast<ProcessFile*>(file)) {
      process->process()->ended.Add(Self());
    }
    if (world.Block(deadline) == Woken::kBySignal) return -EINTR;
  }
}

}  // namespace capstan::sim
