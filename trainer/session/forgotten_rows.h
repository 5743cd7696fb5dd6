// SPDX-License-Identifier: Apache-2.0
//
// train.forgotten_rows: samples of the training data that have weight zero.
// Those of a micro-batch aren't read (RemoveForgotten), so that a run is the
// same to the bit as one without the field until the first of them comes up.
#ifndef CAPSTAN_TRAINER_SESSION_FORGOTTEN_ROWS_H_
#define CAPSTAN_TRAINER_SESSION_FORGOTTEN_ROWS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "host/config/run_config.pb.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/data/data_loader.h"
#include "trainer/session/run_parts.h"

namespace capstan {

std::set<int64_t> ForgottenRows(const Train& train);
std::set<int64_t> ForgottenRows(const RunIdentity& identity);
// Whether that is the name of one of them in a RunIdentity.
bool IsForgottenRow(const std::string& name);

// Checks that the data has these rows and others, and that the objective can be
// without some. Errors name the field.
absl::Status CheckForgotten(const Train& train, const RunParts& parts);

struct RowUse {
  int64_t row = 0;
  int64_t position = 0;  // in the run's sequence of samples
};
// Where `rows` come up among the first `end` positions, ascending.
std::vector<RowUse> UsesOf(const std::set<int64_t>& rows,
                           const DataOrder& order, int64_t end);

// Whether the run `earlier`, from a checkpoint that has read `samples`, may go
// on as `mine`: FAILED_PRECONDITION if a row that only one of them forgets has
// come up, or if that can't be told, since data or order have changed, too.
absl::Status CompareForgotten(const std::string& checkpoint,
                              const RunIdentity& earlier,
                              const RunIdentity& mine, const DataOrder& order,
                              int64_t samples);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_FORGOTTEN_ROWS_H_
