// SPDX-License-Identifier: Apache-2.0
//
// What a descriptor stands for, and the simplest of these: pipes, counters,
// signals, shared memory.
#ifndef CAPSTAN_TESTING_SIM_OBJECTS_H_
#define CAPSTAN_TESTING_SIM_OBJECTS_H_

#include <errno.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <memory>
#include <string>

#include "testing/sim/world.h"

namespace capstan::sim {

// An open file description. Functions return a negative errno on error, as the
// kernel does; -EAGAIN where the caller is to wait for `changed`.
class OpenFile {
 public:
  virtual ~OpenFile() = default;
  virtual ssize_t Read(char*, size_t) { return -EINVAL; }
  virtual ssize_t Write(const char*, size_t) { return -EINVAL; }
  // POLLIN, POLLOUT, POLLHUP, POLLERR that hold now.
  virtual int Ready() { return POLLIN | POLLOUT; }
  virtual int Stat(struct stat* info);
  // Its host has lost power: nobody is told.
  virtual void Vanish() {}

  bool nonblocking = false;
  Watchers changed;
};

// What processes print: lines of the story.
class Console final : public OpenFile {
 public:
  ssize_t Read(char*, size_t) override { return 0; }
  ssize_t Write(const char* bytes, size_t size) override;

 private:
  std::string line_;
};

struct PipeBuffer {
  std::string bytes;
  bool writer_gone = false;
  bool reader_gone = false;
  class OpenFile* reader = nullptr;
  class OpenFile* writer = nullptr;
};

class PipeEnd final : public OpenFile {
 public:
  PipeEnd(std::shared_ptr<PipeBuffer> buffer, bool writes);
  ~PipeEnd() override;
  ssize_t Read(char* out, size_t size) override;
  ssize_t Write(const char* bytes, size_t size) override;
  int Ready() override;

 private:
  const std::shared_ptr<PipeBuffer> buffer_;
  const bool writes_;
};

class EventCounter final : public OpenFile {
 public:
  explicit EventCounter(uint64_t count) : count_(count) {}
  ssize_t Read(char* out, size_t size) override;
  ssize_t Write(const char* bytes, size_t size) override;
  int Ready() override { return POLLOUT | (count_ > 0 ? POLLIN : 0); }

 private:
  uint64_t count_;
};

class SignalFile final : public OpenFile {
 public:
  explicit SignalFile(uint64_t set) : set_(set) {}
  ssize_t Read(char* out, size_t size) override;
  int Ready() override;

 private:
  const uint64_t set_;
};

class ProcessFile final : public OpenFile {
 public:
  explicit ProcessFile(Process* process) : process_(process) {}
  int Ready() override { return process_->alive() ? 0 : POLLIN; }
  Process* process() const { return process_; }

 private:
  Process* const process_;
};

// memfd.
class MemoryFile final : public OpenFile {
 public:
  ssize_t Read(char*, size_t) override { return 0; }
  int Stat(struct stat* info) override;
  std::shared_ptr<Region> region;
};

// A file whose text is made when it is opened: those in /proc.
class TextFile final : public OpenFile {
 public:
  explicit TextFile(std::string text) : text_(std::move(text)) {}
  ssize_t Read(char* out, size_t size) override;

 private:
  const std::string text_;
  size_t at_ = 0;
};

// The description of `fd` in the running process, or null. It stays open while
// the fiber's system call lasts.
class Held {
 public:
  explicit Held(int fd);
  ~Held();
  Held(const Held&) = delete;
  Held& operator=(const Held&) = delete;
  OpenFile* get() const { return file_; }
  OpenFile* operator->() const { return file_; }
  explicit operator bool() const { return file_ != nullptr; }

 private:
  OpenFile* file_ = nullptr;
};

// The lowest free descriptor of the running process, now of `file`.
int NewDescriptor(std::shared_ptr<OpenFile> file, int least = 0);
// Waits until one of poll's events holds. -EAGAIN, -EINTR.
int Await(OpenFile* file, int events, Time deadline);

}  // namespace capstan::sim

#endif  // CAPSTAN_TESTING_SIM_OBJECTS_H_
