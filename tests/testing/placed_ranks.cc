// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/placed_ranks.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan {

int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
  close(fd);
  return ntohs(address.sin_port);
}

TrainerOptions PlacedRank(int rank, int world, int port, int hosts,
                          TrainerOptions options) {
  const int of_host = world / hosts;
  const std::pair<const char*, int> numbers[] = {{"RANK", rank},
                                                 {"WORLD_SIZE", world},
                                                 {"LOCAL_RANK", rank % of_host},
                                                 {"LOCAL_WORLD_SIZE", of_host},
                                                 {"MASTER_PORT", port}};
  for (const auto& [name, number] : numbers) {
    options.environment[name] = absl::StrCat(number);
  }
  options.environment["MASTER_ADDR"] = "127.0.0.1";
  if (hosts > 1) {
    options.environment["CAPSTAN_HOST_ID"] =
        absl::StrCat("host", rank / of_host);
  }
  return options;
}

std::vector<TrainerResult> RunPlacedRanks(int world, const std::string& config,
                                          const TrainerOptions& options,
                                          int hosts) {
  const int port = FreePort();
  std::vector<std::unique_ptr<TrainerProcess>> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.push_back(std::make_unique<TrainerProcess>(
        std::vector<std::string>{"--config=" + config},
        PlacedRank(rank, world, port, hosts, options)));
  }
  std::vector<TrainerResult> results;
  for (const auto& rank : ranks) results.push_back(rank->Wait());
  return results;
}

}  // namespace capstan
