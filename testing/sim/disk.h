// SPDX-License-Identifier: Apache-2.0
//
// Disks: each host has one, and all share one below /shared. A file's bytes are
// on disk once it is synced, its name once its folder is. What isn't, is lost
// or torn when its writer's host loses power; names on the shared disk only
// when all do.
#ifndef CAPSTAN_TESTING_SIM_DISK_H_
#define CAPSTAN_TESTING_SIM_DISK_H_

#include <sys/stat.h>
#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "testing/sim/objects.h"
#include "testing/sim/world.h"

namespace capstan::sim {

struct Inode : std::enable_shared_from_this<Inode> {
  uint64_t id = 0;
  bool folder = false;
  mode_t mode = 0644;
  Time changed = 0;

  // Of a file.
  std::string bytes;
  std::string synced_bytes;
  int writer = -1;  // the host whose bytes aren't synced; -1: none
  // Who has it locked, while that is open; and until when a lost host has.
  class DiskFile* lock = nullptr;
  Time locked_until = 0;

  // Of a folder.
  std::map<std::string, std::shared_ptr<Inode>> entries;
  std::map<std::string, std::shared_ptr<Inode>> synced_entries;
  // Changes since the last sync, a call's together; null: removed.
  using Change = std::vector<std::pair<std::string, std::shared_ptr<Inode>>>;
  std::vector<Change> unsynced;
  Inode* parent = nullptr;  // null: the root, or removed
  std::string name;

  bool unsynced_bytes() const { return writer >= 0; }
};

std::shared_ptr<Inode> NewFolder();
// Its path below its root; "" if it has been removed.
std::string PathOf(const Inode& inode);
// All hosts' (or, with writer >= 0, only that host's) unsynced bytes are lost
// or torn, and with writer < 0 the unsynced names.
void LoseUnsynced(Inode& root, int writer, Random& random);

// Where a path leads.
struct Found {
  std::shared_ptr<Inode> folder;  // of its last name; null: no such folder
  std::string name;
  std::shared_ptr<Inode> inode;       // null: no such file
  std::shared_ptr<OpenFile> special;  // /proc/self/fd/N, of no disk
  bool shared = false;
  int error = 0;  // if folder is null
};
// `at`: a descriptor, as of openat.
Found Look(int at, const std::string& path);

class DiskFile final : public OpenFile {
 public:
  DiskFile(std::shared_ptr<Inode> inode, Host* host, int flags, bool shared);
  ~DiskFile() override;
  ssize_t Read(char* out, size_t size) override;
  ssize_t Write(const char* bytes, size_t size) override;
  ssize_t ReadAt(int64_t at, char* out, size_t size);
  ssize_t WriteAt(int64_t at, const char* bytes, size_t size);
  int Truncate(int64_t size);
  int Sync();
  int64_t Seek(int64_t offset, int whence);
  int Lock(int operation);
  int Stat(struct stat* info) override;
  void Vanish() override;
  const std::shared_ptr<Inode>& inode() const { return inode_; }
  bool shared() const { return shared_; }

 private:
  // What a full or broken disk says, and 0 otherwise.
  int WriteFault();

  const std::shared_ptr<Inode> inode_;
  Host* const host_;
  const int flags_;
  const bool shared_;
  int64_t at_ = 0;
};

// As the calls of these names; a negative errno on error.
int Open(int at, const std::string& path, int flags, mode_t mode);
int StatInode(const Inode& inode, bool shared, struct stat* info);
int Stat(int at, const std::string& path, struct stat* info);
int MakeFolder(int at, const std::string& path);
int Unlink(int at, const std::string& path, bool folder);
int Rename(const std::string& from, const std::string& to, bool exchange,
           bool replace);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_DISK_H_
