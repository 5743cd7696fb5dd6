// SPDX-License-Identifier: Apache-2.0
#include "testing/sim/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>

#include <algorithm>

namespace capstan::sim {
namespace {

// How long the disks' server keeps the locks of a host that is gone: nfsd's
// lease.
constexpr Time kLease = 90 * kSecond;

uint64_t next_inode = 100;

// A system call on a disk takes this long.
void Take(Time least, Time most) {
  World& world = *TheWorld();
  const Time slow = Mine()->host->disk_slowness;
  world.Pass(world.random().Between(least, most) * slow);
}

void TakeMetadata() { Take(5 * kMicrosecond, 200 * kMicrosecond); }

void Changed(const Inode& folder, const std::string& name, bool shared) {
  World& world = *TheWorld();
  if (shared && world.on_disk_change) {
    world.on_disk_change(PathOf(folder) + "/" + name);
  }
}

// `with_last`: a rename's second half, in the same folder.
void SetEntry(Inode& folder, const std::string& name,
              const std::shared_ptr<Inode>& inode, bool with_last = false) {
  if (inode == nullptr) {
    const auto found = folder.entries.find(name);
    if (found != folder.entries.end() && found->second->parent == &folder &&
        found->second->name == name) {
      found->second->parent = nullptr;
    }
    folder.entries.erase(name);
  } else {
    folder.entries[name] = inode;
    inode->parent = &folder;
    inode->name = name;
  }
  if (!with_last) folder.unsynced.emplace_back();
  folder.unsynced.back().emplace_back(name, inode);
  folder.changed = TheWorld()->now();
}

void LoseBytes(Inode& file, Random& random) {
  const std::string& now = file.bytes;
  std::string& old = file.synced_bytes;
  switch (random.Below(4)) {
    case 0:  // what wasn't synced is lost
      file.bytes = old;
      break;
    case 1:  // it had been written in time
      break;
    case 2: {  // its end is lost
      const int64_t kept = random.Below(static_cast<int64_t>(now.size()) + 1);
      file.bytes.resize(static_cast<size_t>(kept) / 512 * 512);
      break;
    }
    default: {  // torn: its length is new, a part's bytes are zeros
      const int64_t begin = random.Below(static_cast<int64_t>(now.size()) + 1);
      const size_t sector = static_cast<size_t>(begin) / 512 * 512;
      for (size_t i = sector; i < file.bytes.size(); ++i) file.bytes[i] = 0;
    }
  }
  old = file.bytes;
  file.writer = -1;
}

void LoseNames(Inode& folder, Random& random) {
  // They reach the disk in order, and any number of them has.
  const int64_t kept =
      random.Below(static_cast<int64_t>(folder.unsynced.size()) + 1);
  folder.unsynced.resize(static_cast<size_t>(kept));
  folder.entries = folder.synced_entries;
  for (const Inode::Change& change : folder.unsynced) {
    for (const auto& [name, inode] : change) {
      if (inode == nullptr) {
        folder.entries.erase(name);
      } else {
        folder.entries[name] = inode;
      }
    }
  }
  folder.unsynced.clear();
  folder.synced_entries = folder.entries;
  for (const auto& [name, inode] : folder.entries) {
    inode->parent = &folder;
    inode->name = name;
  }
}

}  // namespace

std::shared_ptr<Inode> NewFolder() {
  auto made = std::make_shared<Inode>();
  made->id = next_inode++;
  made->folder = true;
  made->mode = 0755;
  return made;
}

std::string PathOf(const Inode& inode) {
  std::string path;
  for (const Inode* at = &inode; at->parent != nullptr; at = at->parent) {
    path = "/" + at->name + path;
  }
  return path;
}

void LoseUnsynced(Inode& root, int writer, Random& random) {
  if (!root.folder) {
    if (root.writer >= 0 && (writer < 0 || root.writer == writer)) {
      LoseBytes(root, random);
    }
    return;
  }
  if (writer < 0) LoseNames(root, random);
  for (const auto& [name, inode] : root.entries) {
    LoseUnsynced(*inode, writer, random);
  }
}

namespace {

std::vector<std::string> Split(const std::string& path) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin < path.size()) {
    size_t end = path.find('/', begin);
    if (end == std::string::npos) end = path.size();
    const std::string name = path.substr(begin, end - begin);
    if (!name.empty() && name != ".") names.push_back(name);
    begin = end + 1;
  }
  return names;
}

std::shared_ptr<OpenFile> Descriptor(const Process& process,
                                     const std::string& text) {
  const size_t fd = static_cast<size_t>(atoi(text.c_str()));
  return fd < process.files.size() ? process.files[fd] : nullptr;
}

// /proc/self/fd/N and what is below it: where that begins, and the names left.
bool LookInProc(std::vector<std::string>* names, Found* found,
                std::shared_ptr<Inode>* begin) {
  if (names->size() < 2 || (*names)[0] != "proc") return false;
  World& world = *TheWorld();
  Process* const process =
      (*names)[1] == "self" ? Mine() : world.Find(atoi((*names)[1].c_str()));
  if (names->size() >= 4 && (*names)[2] == "fd" && process != nullptr &&
      process->alive() && process->host == Mine()->host) {
    found->special = Descriptor(*process, (*names)[3]);
    if (auto* const disk = dynamic_cast<DiskFile*>(found->special.get())) {
      *begin = disk->inode();
      found->shared = disk->shared();
      names->erase(names->begin(), names->begin() + 4);
      return false;
    }
    return true;
  }
  std::string text;
  if (names->size() == 3 && (*names)[2] == "stat" && process != nullptr &&
      process->state != Process::kGone) {
    const char* const states[] = {"S", "T", "Z", "Z"};
    text = std::to_string(process->pid) + " (capstan) " +
           states[process->state] + " 1\n";
  } else if (names->back() == "boot_id") {
    text = Mine()->host->boot_id() + "\n";
  }
  if (!text.empty()) found->special = std::make_shared<TextFile>(text);
  return true;
}

}  // namespace

Found Look(int at, const std::string& path) {
  Found found;
  std::vector<std::string> names = Split(path);
  std::shared_ptr<Inode> folder = Mine()->host->root;
  if (path.empty() || path[0] != '/') {
    if (at >= 0) {
      const auto* const disk = dynamic_cast<DiskFile*>(
          Descriptor(*Mine(), std::to_string(at)).get());
      if (disk == nullptr) {
        found.error = ENOTDIR;
        return found;
      }
      folder = disk->inode();
      found.shared = disk->shared();
    } else {
      const std::vector<std::string> before = Split(Mine()->folder);
      names.insert(names.begin(), before.begin(), before.end());
    }
  }
  if (folder == Mine()->host->root) {
    if (LookInProc(&names, &found, &folder)) return found;
    if (!names.empty() && names[0] == "shared") {
      folder = TheWorld()->shared_root;
      found.shared = true;
      names.erase(names.begin());
    }
  }
  found.special = nullptr;
  if (names.empty()) {
    found.inode = folder;
    return found;
  }
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const auto next = folder->entries.find(names[i]);
    if (names[i] == ".." && folder->parent != nullptr) {
      folder = folder->parent->shared_from_this();
    } else if (next == folder->entries.end()) {
      found.error = ENOENT;
      return found;
    } else if (!next->second->folder) {
      found.error = ENOTDIR;
      return found;
    } else {
      folder = next->second;
    }
  }
  found.folder = folder;
  found.name = names.back();
  const auto last = folder->entries.find(found.name);
  if (last != folder->entries.end()) found.inode = last->second;
  return found;
}

DiskFile::DiskFile(std::shared_ptr<Inode> inode, Host* host, int flags,
                   bool shared)
    : inode_(std::move(inode)), host_(host), flags_(flags), shared_(shared) {}

DiskFile::~DiskFile() {
  if (inode_->lock == this) inode_->lock = nullptr;
}

void DiskFile::Vanish() {
  if (inode_->lock != this) return;
  inode_->lock = nullptr;
  if (shared_) inode_->locked_until = TheWorld()->now() + kLease;
}

ssize_t DiskFile::Read(char* out, size_t size) {
  if (inode_->folder) return -EISDIR;
  const ssize_t n = ReadAt(at_, out, size);
  if (n > 0) at_ += n;
  return n;
}

ssize_t DiskFile::ReadAt(int64_t at, char* out, size_t size) {
  const auto begin = static_cast<size_t>(at);
  if (begin >= inode_->bytes.size()) return 0;
  const size_t n = std::min(size, inode_->bytes.size() - begin);
  memcpy(out, inode_->bytes.data() + begin, n);
  return static_cast<ssize_t>(n);
}

int DiskFile::WriteFault() {
  World& world = *TheWorld();
  if (host_->disk_errors > 0 && world.random().OneIn(3)) {
    --host_->disk_errors;
    world.Tell(Mine(), "gets an I/O error from " + PathOf(*inode_));
    return -EIO;
  }
  return 0;
}

ssize_t DiskFile::Write(const char* bytes, size_t size) {
  if ((flags_ & O_APPEND) != 0)
    at_ = static_cast<int64_t>(inode_->bytes.size());
  const ssize_t n = WriteAt(at_, bytes, size);
  if (n > 0) at_ += n;
  return n;
}

ssize_t DiskFile::WriteAt(int64_t at, const char* bytes, size_t size) {
  World& world = *TheWorld();
  if ((flags_ & O_ACCMODE) == O_RDONLY) return -EBADF;
  Take(2 * kMicrosecond, 50 * kMicrosecond);
  if (const int fault = WriteFault(); fault != 0) return fault;
  if (world.now() < host_->disk_full_until) {
    // The last block may have room.
    size = world.random().OneIn(2) ? 0 : size / 2;
    if (size == 0) {
      world.Tell(Mine(), "finds the disk full at " + PathOf(*inode_));
      return -ENOSPC;
    }
  }
  const size_t end = static_cast<size_t>(at) + size;
  if (inode_->bytes.size() < end) inode_->bytes.resize(end);
  memcpy(&inode_->bytes[static_cast<size_t>(at)], bytes, size);
  inode_->writer = host_->index;
  inode_->changed = world.now();
  return static_cast<ssize_t>(size);
}

int DiskFile::Truncate(int64_t size) {
  TakeMetadata();
  inode_->bytes.resize(static_cast<size_t>(size));
  inode_->writer = host_->index;
  return 0;
}

int DiskFile::Sync() {
  Take(kMillisecond / 2, 20 * kMillisecond);
  if (const int fault = WriteFault(); fault != 0) return fault;
  if (inode_->folder) {
    inode_->synced_entries = inode_->entries;
    inode_->unsynced.clear();
  } else {
    inode_->synced_bytes = inode_->bytes;
    inode_->writer = -1;
  }
  return 0;
}

int64_t DiskFile::Seek(int64_t offset, int whence) {
  if (whence == SEEK_SET) at_ = offset;
  if (whence == SEEK_CUR) at_ += offset;
  if (whence == SEEK_END) {
    at_ = static_cast<int64_t>(inode_->bytes.size()) + offset;
  }
  return at_;
}

int DiskFile::Lock(int operation) {
  if ((operation & LOCK_UN) != 0) {
    if (inode_->lock == this) inode_->lock = nullptr;
    return 0;
  }
  const bool lost = TheWorld()->now() < inode_->locked_until;
  if (inode_->lock == this) return 0;
  if (inode_->lock != nullptr || lost) return -EWOULDBLOCK;
  inode_->lock = this;
  return 0;
}

int StatInode(const Inode& inode, bool shared, struct stat* info) {
  *info = {};
  info->st_dev = shared ? 1 : 2;
  info->st_ino = inode.id;
  info->st_mode = inode.mode | (inode.folder ? S_IFDIR : S_IFREG);
  info->st_nlink = inode.folder ? 2 : 1;
  info->st_size = static_cast<off_t>(inode.bytes.size());
  info->st_blksize = 4096;
  return 0;
}

int DiskFile::Stat(struct stat* info) {
  return StatInode(*inode_, shared_, info);
}

int Open(int at, const std::string& path, int flags, mode_t mode) {
  TakeMetadata();
  Found found = Look(at, path);
  Host* const host = Mine()->host;
  if (found.special != nullptr) return NewDescriptor(found.special);
  if (found.inode == nullptr) {
    if (found.folder == nullptr)
      return -(found.error != 0 ? found.error : ENOENT);
    if ((flags & O_CREAT) == 0) return -ENOENT;
    if (TheWorld()->now() < host->disk_full_until) return -ENOSPC;
    found.inode = std::make_shared<Inode>();
    found.inode->id = next_inode++;
    found.inode->mode = mode & 0777;
    SetEntry(*found.folder, found.name, found.inode);
    Changed(*found.folder, found.name, found.shared);
  } else if ((flags & O_CREAT) != 0 && (flags & O_EXCL) != 0) {
    return -EEXIST;
  }
  if (found.inode->folder && (flags & O_ACCMODE) != O_RDONLY) return -EISDIR;
  if (!found.inode->folder && (flags & O_DIRECTORY) != 0) return -ENOTDIR;
  auto file =
      std::make_shared<DiskFile>(found.inode, host, flags, found.shared);
  if ((flags & O_TRUNC) != 0 && !found.inode->bytes.empty()) file->Truncate(0);
  return NewDescriptor(std::move(file));
}

int Stat(int at, const std::string& path, struct stat* info) {
  const Found found = Look(at, path);
  if (found.special != nullptr) return found.special->Stat(info);
  if (found.inode == nullptr) return -(found.error != 0 ? found.error : ENOENT);
  return StatInode(*found.inode, found.shared, info);
}

int MakeFolder(int at, const std::string& path) {
  TakeMetadata();
  const Found found = Look(at, path);
  if (found.inode != nullptr) return -EEXIST;
  if (found.folder == nullptr)
    return -(found.error != 0 ? found.error : ENOENT);
  if (TheWorld()->now() < Mine()->host->disk_full_until) return -ENOSPC;
  SetEntry(*found.folder, found.name, NewFolder());
  Changed(*found.folder, found.name, found.shared);
  return 0;
}

int Unlink(int at, const std::string& path, bool folder) {
  TakeMetadata();
  const Found found = Look(at, path);
  if (found.inode == nullptr) return -(found.error != 0 ? found.error : ENOENT);
  if (found.folder == nullptr) return -EBUSY;
  if (found.inode->folder != folder) return folder ? -ENOTDIR : -EISDIR;
  if (folder && !found.inode->entries.empty()) return -ENOTEMPTY;
  SetEntry(*found.folder, found.name, nullptr);
  Changed(*found.folder, found.name, found.shared);
  return 0;
}

int Rename(const std::string& from, const std::string& to, bool exchange,
           bool replace) {
  TakeMetadata();
  const Found a = Look(AT_FDCWD, from);
  const Found b = Look(AT_FDCWD, to);
  if (a.inode == nullptr || a.folder == nullptr || b.folder == nullptr) {
    return -ENOENT;
  }
  if (exchange) {
    if (b.inode == nullptr) return -ENOENT;
    SetEntry(*a.folder, a.name, b.inode);
    SetEntry(*b.folder, b.name, a.inode, a.folder == b.folder);
  } else {
    if (b.inode != nullptr) {
      if (!replace) return -EEXIST;
      if (b.inode->folder != a.inode->folder) return -ENOTDIR;
      if (!b.inode->entries.empty()) return -ENOTEMPTY;
      b.inode->parent = nullptr;
    }
    SetEntry(*b.folder, b.name, a.inode);
    SetEntry(*a.folder, a.name, nullptr, a.folder == b.folder);
  }
  Changed(*b.folder, b.name, b.shared);
  return 0;
}

}  // namespace capstan::sim
