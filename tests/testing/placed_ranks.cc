// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/placed_ranks.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"

namespace capstan {

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
