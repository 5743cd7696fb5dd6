// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_BAD_SAMPLES_H_
#define CAPSTAN_TRAINER_SESSION_BAD_SAMPLES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "trainer/data/forgiving_reader.h"
#include "trainer/session/session.h"

namespace capstan {

// Shares the bad samples `mine` with all ranks: adds them to *known
// (TrainState's), and notes each new one. FAILED_PRECONDITION on all ranks once
// the run has skipped more than train.skip_bad_samples. `data` names the
// dataset, "train_data". Collective.
absl::Status ShareBadSamples(const char* data,
                             const std::vector<BadSample>& mine,
                             Session* session, std::vector<int64_t>* known);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_BAD_SAMPLES_H_
