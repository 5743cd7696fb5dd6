// SPDX-License-Identifier: Apache-2.0
//
// Ranks that are started one by one, each told its place by torchrun's
// environment.
#ifndef CAPSTAN_TESTS_TESTING_PLACED_RANKS_H_
#define CAPSTAN_TESTS_TESTING_PLACED_RANKS_H_

#include <string>
#include <vector>

#include "base/free_port_for_test.h"
#include "tests/testing/trainer_process.h"

namespace capstan {

// `options` of that rank of `world`. `hosts`, which divides `world`: how many
// hosts the ranks count as being on, neighbours together.
TrainerOptions PlacedRank(int rank, int world, int port, int hosts = 1,
                          TrainerOptions options = {});

// Trains with `world` ranks to the end. The result of each.
std::vector<TrainerResult> RunPlacedRanks(int world, const std::string& config,
                                          const TrainerOptions& options = {},
                                          int hosts = 1);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_PLACED_RANKS_H_
