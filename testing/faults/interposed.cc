// SPDX-License-Identifier: Apache-2.0
//
// Puts fault points into the core without a line of code in it. What is defined
// here are functions of the core: as the core is a shared library with default
// visibility, the dynamic linker resolves its own calls of them to the program
// that this is linked into. Each passes its fault point, and calls the core's.
//
// A function must not be inline or in an unnamed namespace, and must not be
// called in its own file under clang, which may inline it there.
// tests/faults/generator_test checks that each site is passed.
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <glog/logging.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/status.h"
#include "cluster/comm/async_group.h"
#include "host/plugins/plugin_host.h"
#include "testing/faults/core_own.h"
#include "testing/faults/fault_point.h"
#include "testing/faults/faulty_plugins.h"
#include "trainer/memory/tracking_allocator.h"

namespace capstan {
namespace {

class FaultyAllocator final : public c10::Allocator {
 public:
  explicit FaultyAllocator(c10::Allocator* allocator) : allocator_(allocator) {}
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 0) FaultPoint::Pass("allocation");
    return allocator_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return allocator_->raw_deleter();
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    allocator_->copy_data(to, from, bytes);
  }

 private:
  c10::Allocator* const allocator_;
};

}  // namespace

absl::Status MakeFolder(const std::string& path) {
  static const auto core = CoreOwn(&MakeFolder);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.make_folder"));
  return core(path);
}

absl::Status RemoveTree(const std::string& path) {
  static const auto core = CoreOwn(&RemoveTree);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.remove"));
  return core(path);
}

absl::StatusOr<std::string> ReadWholeFile(const std::string& path,
                                          int64_t most_bytes) {
  static const auto core = CoreOwn(&ReadWholeFile);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.read"));
  return core(path, most_bytes);
}

absl::Status WriteAll(int fd, absl::string_view bytes,
                      const std::string& path) {
  static const auto core = CoreOwn(&WriteAll);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.write"));
  return core(fd, bytes, path);
}

absl::Status SyncPath(const std::string& path) {
  static const auto core = CoreOwn(&SyncPath);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.sync"));
  return core(path);
}

absl::Status ReplaceFolder(const std::string& from, const std::string& to) {
  static const auto core = CoreOwn(&ReplaceFolder);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.replace_folder"));
  return core(from, to);
}

absl::StatusOr<std::unique_ptr<InputFile>> InputFile::Open(
    const std::string& path) {
  static const auto core = CoreOwn(&InputFile::Open);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.open"));
  return core(path);
}

absl::Status InputFile::ReadAt(int64_t offset, int64_t bytes, char* out) const {
  static const auto core = CoreOwn(&InputFile::ReadAt);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.read"));
  return (this->*core)(offset, bytes, out);
}

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path,
                                            Start start) {
  static const auto core = CoreOwn(&OutputFile::Open);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.open"));
  return core(path, start);
}

absl::Status OutputFile::Close() {
  static const auto core = CoreOwn(&OutputFile::Close);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.close"));
  return (this->*core)();
}

absl::StatusOr<std::unique_ptr<HiddenFile>> HiddenFile::Create(
    const std::string& path, absl::string_view suffix) {
  static const auto core = CoreOwn(&HiddenFile::Create);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.open"));
  return core(path, suffix);
}

absl::Status HiddenFile::Close() {
  static const auto core = CoreOwn(&HiddenFile::Close);
  CAPSTAN_RETURN_IF_ERROR(FaultPoint::Check("file.close"));
  return (this->*core)();
}

AsyncGroup::Task AsyncGroup::Prepare(const char* collective, int64_t bytes,
                                     int64_t bytes_sent, Task run) {
  static const auto core = CoreOwn(&AsyncGroup::Prepare);
  FaultPoint::Pass("collective");
  return (this->*core)(collective, bytes, bytes_sent, std::move(run));
}

void InstallTrackingAllocator() {
  static const auto core = CoreOwn(&InstallTrackingAllocator);
  static FaultyAllocator* const allocator = [] {
    core();
    auto* const made = new FaultyAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(made, /*priority=*/1);
    return made;
  }();
  (void)allocator;
}

absl::Status PluginHost::CreateInstance(const std::string& config_type,
                                        PluginCategory category,
                                        absl::string_view config,
                                        void** instance) {
  static const auto core = CoreOwn(&PluginHost::CreateInstance);
  CAPSTAN_RETURN_IF_ERROR(
      (this->*core)(config_type, category, config, instance));
  *instance = WithFaultPoints(category, *instance);
  return absl::OkStatus();
}

}  // namespace capstan
