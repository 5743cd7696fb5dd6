// SPDX-License-Identifier: Apache-2.0
//
// Descriptors, files and folders.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "testing/sim/disk.h"
#include "testing/sim/objects.h"
#include "testing/sim/real.h"

namespace capstan::sim {
namespace {

// What opendir returns.
struct OpenFolder {
  int fd = -1;
  std::vector<dirent> entries;
  size_t next = 0;
};

DIR* ReadFolder(int fd) {
  const Held file(fd);
  auto* const disk = dynamic_cast<DiskFile*>(file.get());
  if (disk == nullptr || !disk->inode()->folder) {
    errno = ENOTDIR;
    return nullptr;
  }
  auto* const open = new OpenFolder;
  open->fd = fd;
  for (const auto& [name, inode] : disk->inode()->entries) {
    dirent entry = {};
    entry.d_ino = inode->id;
    entry.d_type = inode->folder ? DT_DIR : DT_REG;
    strncpy(entry.d_name, name.c_str(), sizeof(entry.d_name) - 1);
    open->entries.push_back(entry);
  }
  // In no order that a program may rely on.
  Random& random = TheWorld()->random();
  for (size_t i = open->entries.size(); i > 1; --i) {
    std::swap(open->entries[i - 1],
              open->entries[random.Below(static_cast<int64_t>(i))]);
  }
  return reinterpret_cast<DIR*>(open);
}

// Calls `transfer` until it needn't wait.
template <typename Transfer>
ssize_t Transferred(int fd, int event, bool wait, const Transfer& transfer) {
  const Held file(fd);
  if (!file) return -EBADF;
  while (true) {
    const ssize_t n = transfer(file.get());
    if (n != -EAGAIN || file->nonblocking || !wait) return n;
    const int waited = Await(file.get(), event, kNever);
    if (waited != 0) return waited;
  }
}

ssize_t WriteAll(int fd, const char* bytes, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = Transferred(fd, POLLOUT, true, [&](OpenFile* file) {
      return file->Write(bytes + done, size - done);
    });
    if (n < 0) return done > 0 ? static_cast<ssize_t>(done) : n;
    done += static_cast<size_t>(n);
    const Held file(fd);
    if (dynamic_cast<DiskFile*>(file.get()) != nullptr) break;
  }
  return static_cast<ssize_t>(done);
}

int Poll(pollfd* fds, nfds_t count, Time deadline) {
  World& world = *TheWorld();
  while (true) {
    world.BeginWait();
    int ready = 0;
    for (nfds_t i = 0; i < count; ++i) {
      fds[i].revents = 0;
      if (fds[i].fd < 0) continue;
      const Held file(fds[i].fd);
      if (!file) {
        fds[i].revents = POLLNVAL;
        ++ready;
        continue;
      }
      const int events = file->Ready();
      fds[i].revents =
          static_cast<int16_t>(events & (fds[i].events | POLLERR | POLLHUP));
      if (fds[i].revents != 0) ++ready;
    }
    if (ready > 0) return ready;
    if (world.now() >= deadline) {
      world.HandleSignals();
      return 0;
    }
    for (nfds_t i = 0; i < count; ++i) {
      const Held file(fds[i].fd);
      if (!file) continue;
      file->changed.Add(Self());
      if (auto* const process = dynamic_cast<ProcessFile*>(file.get())) {
        process->process()->ended.Add(Self());
      }
    }
    switch (world.Block(deadline)) {
      case Woken::kBySignal:
        return -EINTR;
      case Woken::kByTime:
      case Woken::kByChange:
        break;
    }
  }
}

DiskFile* DiskOf(const Held& file) {
  return dynamic_cast<DiskFile*>(file.get());
}

int Control(int fd, int command, long argument) {
  const Held file(fd);
  if (!file) return -EBADF;
  switch (command) {
    case F_GETFL:
      return file->nonblocking ? O_NONBLOCK : 0;
    case F_SETFL:
      file->nonblocking = (argument & O_NONBLOCK) != 0;
      return 0;
    case F_DUPFD:
    case F_DUPFD_CLOEXEC:
      return NewDescriptor(Mine()->files[fd], static_cast<int>(argument));
    case F_GETFD:
    case F_SETFD:
      return 0;
    default:
      return -EINVAL;
  }
}

}  // namespace
}  // namespace capstan::sim

using namespace capstan::sim;  // NOLINT: of the functions below

extern "C" {

ssize_t read(int fd, void* out, size_t size) {
  SIM_REAL(read, fd, out, size);
  return Result(Transferred(fd, POLLIN, true, [&](OpenFile* file) {
    return file->Read(static_cast<char*>(out), size);
  }));
}
ssize_t write(int fd, const void* bytes, size_t size) {
  SIM_REAL(write, fd, bytes, size);
  return Result(WriteAll(fd, static_cast<const char*>(bytes), size));
}
ssize_t writev(int fd, const iovec* parts, int count) {
  SIM_REAL(writev, fd, parts, count);
  ssize_t done = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t n = WriteAll(fd, static_cast<const char*>(parts[i].iov_base),
                               parts[i].iov_len);
    if (n < 0) return done > 0 ? done : Result(n);
    done += n;
  }
  return done;
}
ssize_t pread(int fd, void* out, size_t size, off_t at) {
  SIM_REAL(pread, fd, out, size, at);
  const Held file(fd);
  if (auto* const memory = dynamic_cast<MemoryFile*>(file.get())) {
    const size_t bytes = memory->region == nullptr ? 0 : memory->region->bytes;
    const size_t begin = std::min(bytes, static_cast<size_t>(at));
    const size_t n = std::min(size, bytes - begin);
    memcpy(out, memory->region->data + begin, n);
    return static_cast<ssize_t>(n);
  }
  DiskFile* const disk = DiskOf(file);
  if (disk == nullptr) return Result<ssize_t>(-EBADF);
  return Result(disk->ReadAt(at, static_cast<char*>(out), size));
}
ssize_t pwrite(int fd, const void* bytes, size_t size, off_t at) {
  SIM_REAL(pwrite, fd, bytes, size, at);
  const Held file(fd);
  DiskFile* const disk = DiskOf(file);
  if (disk == nullptr) return Result<ssize_t>(-EBADF);
  return Result(disk->WriteAt(at, static_cast<const char*>(bytes), size));
}
off_t lseek(int fd, off_t offset, int whence) noexcept {
  SIM_REAL(lseek, fd, offset, whence);
  const Held file(fd);
  DiskFile* const disk = DiskOf(file);
  return disk == nullptr ? Result<off_t>(-ESPIPE) : disk->Seek(offset, whence);
}
int close(int fd) {
  SIM_REAL(close, fd);
  auto& files = Mine()->files;
  if (fd < 0 || fd >= static_cast<int>(files.size()) || files[fd] == nullptr) {
    return Result(-EBADF);
  }
  const std::shared_ptr<OpenFile> last = std::move(files[fd]);
  files[fd] = nullptr;
  return 0;
}
int dup2(int from, int to) noexcept {
  SIM_REAL(dup2, from, to);
  auto& files = Mine()->files;
  if (static_cast<int>(files.size()) <= to) files.resize(to + 1);
  files[to] = files[from];
  return to;
}
int fcntl(int fd, int command, ...) {
  va_list list;
  va_start(list, command);
  const long argument = va_arg(list, long);
  va_end(list);
  SIM_REAL(fcntl, fd, command, argument);
  return Result(Control(fd, command, argument));
}
int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* const argument = va_arg(list, void*);
  va_end(list);
  SIM_REAL(ioctl, fd, request, argument);
  return Result(-ENOTTY);
}
int isatty(int fd) noexcept {
  SIM_REAL(isatty, fd);
  errno = ENOTTY;
  return 0;
}
int pipe2(int* ends, int flags) noexcept {
  SIM_REAL(pipe2, ends, flags);
  auto buffer = std::make_shared<PipeBuffer>();
  ends[0] = NewDescriptor(std::make_shared<PipeEnd>(buffer, false));
  ends[1] = NewDescriptor(std::make_shared<PipeEnd>(buffer, true));
  return 0;
}
int eventfd(unsigned count, int flags) noexcept {
  SIM_REAL(eventfd, count, flags);
  auto file = std::make_shared<EventCounter>(count);
  file->nonblocking = (flags & EFD_NONBLOCK) != 0;
  return NewDescriptor(std::move(file));
}
int eventfd_write(int fd, eventfd_t count) {
  SIM_REAL(eventfd_write, fd, count);
  return write(fd, &count, sizeof(count)) == sizeof(count) ? 0 : -1;
}
int poll(pollfd* fds, nfds_t count, int timeout) {
  SIM_REAL(poll, fds, count, timeout);
  return Result(
      Poll(fds, count,
           timeout < 0 ? kNever : TheWorld()->now() + timeout * kMillisecond));
}

int open(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  SIM_REAL(open, path, flags, mode);
  return Result(Open(AT_FDCWD, path, flags, mode));
}
int openat(int at, const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  SIM_REAL(openat, at, path, flags, mode);
  return Result(Open(at, path, flags, mode));
}
int stat(const char* path, struct stat* info) noexcept {
  SIM_REAL(stat, path, info);
  return Result(capstan::sim::Stat(AT_FDCWD, path, info));
}
int lstat(const char* path, struct stat* info) noexcept {
  SIM_REAL(lstat, path, info);
  return Result(capstan::sim::Stat(AT_FDCWD, path, info));
}
int fstat(int fd, struct stat* info) noexcept {
  SIM_REAL(fstat, fd, info);
  const Held file(fd);
  return file ? file->Stat(info) : Result(-EBADF);
}
int fstatat(int at, const char* path, struct stat* info, int flags) noexcept {
  SIM_REAL(fstatat, at, path, info, flags);
  return Result(capstan::sim::Stat(at, path, info));
}
int access(const char* path, int mode) noexcept {
  SIM_REAL(access, path, mode);
  struct stat info;
  return stat(path, &info);
}
int fstatfs(int fd, struct statfs* info) noexcept {
  SIM_REAL(fstatfs, fd, info);
  *info = {};
  info->f_type = 0x6969;  // NFS
  return 0;
}
int statvfs(const char* path, struct statvfs* info) noexcept {
  SIM_REAL(statvfs, path, info);
  *info = {};
  return 0;
}
int fsync(int fd) {
  SIM_REAL(fsync, fd);
  const Held file(fd);
  DiskFile* const disk = DiskOf(file);
  return Result(disk == nullptr ? -EINVAL : disk->Sync());
}
int fdatasync(int fd) {
  SIM_REAL(fdatasync, fd);
  return fsync(fd);
}
int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned flags) {
  SIM_REAL(sync_file_range, fd, offset, bytes, flags);
  return 0;
}
int ftruncate(int fd, off_t size) noexcept {
  SIM_REAL(ftruncate, fd, size);
  const Held file(fd);
  if (auto* const memory = dynamic_cast<MemoryFile*>(file.get())) {
    memory->region = std::make_shared<Region>(static_cast<size_t>(size));
    return 0;
  }
  DiskFile* const disk = DiskOf(file);
  return Result(disk == nullptr ? -EINVAL : disk->Truncate(size));
}
int flock(int fd, int operation) noexcept {
  SIM_REAL(flock, fd, operation);
  const Held file(fd);
  DiskFile* const disk = DiskOf(file);
  return Result(disk == nullptr ? -EBADF : disk->Lock(operation));
}
int mkdir(const char* path, mode_t mode) noexcept {
  SIM_REAL(mkdir, path, mode);
  return Result(MakeFolder(AT_FDCWD, path));
}
int unlink(const char* path) noexcept {
  SIM_REAL(unlink, path);
  return Result(Unlink(AT_FDCWD, path, /*folder=*/false));
}
int unlinkat(int at, const char* path, int flags) noexcept {
  SIM_REAL(unlinkat, at, path, flags);
  return Result(Unlink(at, path, (flags & AT_REMOVEDIR) != 0));
}
int rmdir(const char* path) noexcept {
  SIM_REAL(rmdir, path);
  return Result(Unlink(AT_FDCWD, path, /*folder=*/true));
}
int remove(const char* path) noexcept {
  SIM_REAL(remove, path);
  const int result = Unlink(AT_FDCWD, path, /*folder=*/false);
  return Result(result == -EISDIR ? Unlink(AT_FDCWD, path, true) : result);
}
int rename(const char* from, const char* to) noexcept {
  SIM_REAL(rename, from, to);
  return Result(Rename(from, to, /*exchange=*/false, /*replace=*/true));
}
int renameat2(int at, const char* from, int to_at, const char* to,
              unsigned flags) noexcept {
  SIM_REAL(renameat2, at, from, to_at, to, flags);
  return Result(Rename(from, to, (flags & RENAME_EXCHANGE) != 0,
                       (flags & RENAME_NOREPLACE) == 0));
}
ssize_t readlink(const char* path, char* out, size_t size) noexcept {
  SIM_REAL(readlink, path, out, size);
  const Found found = Look(AT_FDCWD, path);
  const std::string text = path;
  if (text.rfind("/proc/self/fd/", 0) != 0 || found.inode == nullptr) {
    return Result<ssize_t>(-EINVAL);
  }
  const std::string target =
      (found.shared ? "/shared" : "") + PathOf(*found.inode);
  const size_t n = std::min(size, target.size());
  memcpy(out, target.data(), n);
  return static_cast<ssize_t>(n);
}
char* getcwd(char* out, size_t size) noexcept {
  SIM_REAL(getcwd, out, size);
  strncpy(out, Mine()->folder.c_str(), size);
  return out;
}

DIR* opendir(const char* path) {
  SIM_REAL(opendir, path);
  const int fd = open(path, O_RDONLY | O_DIRECTORY);
  return fd < 0 ? nullptr : ReadFolder(fd);
}
DIR* fdopendir(int fd) {
  SIM_REAL(fdopendir, fd);
  return ReadFolder(fd);
}
dirent* readdir(DIR* folder) {
  SIM_REAL(readdir, folder);
  auto* const open = reinterpret_cast<OpenFolder*>(folder);
  if (open->next == open->entries.size()) return nullptr;
  return &open->entries[open->next++];
}
int closedir(DIR* folder) {
  SIM_REAL(closedir, folder);
  auto* const open = reinterpret_cast<OpenFolder*>(folder);
  close(open->fd);
  delete open;
  return 0;
}
int dirfd(DIR* folder) noexcept {
  SIM_REAL(dirfd, folder);
  return reinterpret_cast<OpenFolder*>(folder)->fd;
}

// Other names of the same, by which older libraries were linked.
int __xstat(int version, const char* path, struct stat* info) noexcept {
  SIM_REAL(__xstat, version, path, info);
  return stat(path, info);
}
int __lxstat(int version, const char* path, struct stat* info) noexcept {
  SIM_REAL(__lxstat, version, path, info);
  return lstat(path, info);
}
int __fxstat(int version, int fd, struct stat* info) noexcept {
  SIM_REAL(__fxstat, version, fd, info);
  return fstat(fd, info);
}
int __fxstatat(int version, int at, const char* path, struct stat* info,
               int flags) noexcept {
  SIM_REAL(__fxstatat, version, at, path, info, flags);
  return fstatat(at, path, info, flags);
}
int open64(const char* path, int flags, ...) {
  va_list list;
  va_start(list, flags);
  const mode_t mode = va_arg(list, mode_t);
  va_end(list);
  SIM_REAL(open64, path, flags, mode);
  return open(path, flags, mode);
}
dirent64* readdir64(DIR* folder) {
  SIM_REAL(readdir64, folder);
  return reinterpret_cast<dirent64*>(readdir(folder));
}
off64_t lseek64(int fd, off64_t offset, int whence) noexcept {
  SIM_REAL(lseek64, fd, offset, whence);
  return lseek(fd, offset, whence);
}
int fstat64(int fd, struct stat64* info) noexcept {
  SIM_REAL(fstat64, fd, info);
  return fstat(fd, reinterpret_cast<struct stat*>(info));
}

}  // extern "C"
