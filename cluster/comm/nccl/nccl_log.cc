// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl/nccl_log.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <torch/csrc/distributed/c10d/NCCLUtils.hpp>

#include "absl/strings/str_cat.h"
#include "cluster/comm/nccl_network.h"

namespace capstan {
namespace {

int log_file = -1;  // open for good: NCCL goes on writing to it
bool sets_subsystems = false;
bool set_by_user = false;

std::string LogSoFar() {
  std::string log;
  if (log_file < 0) return log;
  char piece[4096];
  ssize_t n;
  while ((n = pread(log_file, piece, sizeof(piece),
                    static_cast<off_t>(log.size()))) > 0) {
    log.append(piece, static_cast<size_t>(n));
  }
  return log;
}

}  // namespace

void KeepNcclLog() {
  if (log_file >= 0) return;
  set_by_user =
      getenv("NCCL_DEBUG") != nullptr || getenv("NCCL_DEBUG_FILE") != nullptr;
  if (set_by_user) return;
  log_file = memfd_create("nccl-log", MFD_CLOEXEC);
  if (log_file < 0) return;
  setenv("NCCL_DEBUG", "INFO", /*overwrite=*/1);
  sets_subsystems = getenv("NCCL_DEBUG_SUBSYS") == nullptr;
  if (sets_subsystems) setenv("NCCL_DEBUG_SUBSYS", "INIT", /*overwrite=*/1);
  setenv("NCCL_DEBUG_FILE", absl::StrCat("/proc/self/fd/", log_file).c_str(),
         /*overwrite=*/1);
}

std::string NcclConnection() {
  const std::string version = absl::StrCat("NCCL ", c10d::getNcclVersion());
  if (set_by_user) {
    return absl::StrCat(version, " (NCCL_DEBUG is set: see its log)");
  }
  const std::string network = NcclNetwork(LogSoFar());
  if (log_file >= 0) {
    // NCCL has read them; processes that this one starts needn't.
    unsetenv("NCCL_DEBUG");
    unsetenv("NCCL_DEBUG_FILE");
    if (sets_subsystems) unsetenv("NCCL_DEBUG_SUBSYS");
  }
  return network.empty() ? version : absl::StrCat(version, " over ", network);
}

}  // namespace capstan
