// SPDX-License-Identifier: Apache-2.0
#include "trainer/process_group/gloo_group.h"

#include <cstdlib>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/process_group/backend_group.h"
#include "trainer/process_group/rendezvous.h"

namespace capstan {
namespace {

using c10d::ProcessGroupGloo;

std::shared_ptr<gloo::transport::Device> CreateDevice(const RankInfo& info) {
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  if (interface != nullptr && *interface != '\0') {
    return ProcessGroupGloo::createDeviceForInterface(interface);
  }
  if (info.master_addr == "127.0.0.1" || info.master_addr == "localhost") {
    return ProcessGroupGloo::createDeviceForHostname("127.0.0.1");
  }
  return ProcessGroupGloo::createDefaultDevice();
}

}  // namespace

absl::StatusOr<std::unique_ptr<ProcessGroup>> CreateGlooGroup(
    const RankInfo& info, c10::intrusive_ptr<c10d::Store> store) {
  try {
    auto options = ProcessGroupGloo::Options::create(kCollectiveTimeout);
    options->devices.push_back(CreateDevice(info));
    const auto connect = [store, options](const std::string& prefix, int rank,
                                          int size) {
      return c10::make_intrusive<ProcessGroupGloo>(
          c10::make_intrusive<c10d::PrefixStore>(prefix, store), rank, size,
          options);
    };
    return std::make_unique<BackendGroup>(connect, "gloo", at::kCPU, info.rank,
                                          info.world_size);
  } catch (...) {
    return absl::UnavailableError(
        absl::StrCat("rank ", info.rank, " could not connect to the other ",
                     "ranks with Gloo (GLOO_SOCKET_IFNAME names the network ",
                     "interface): ", CurrentExceptionToStatus().message()));
  }
}

}  // namespace capstan
