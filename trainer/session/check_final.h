// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_CHECK_FINAL_H_
#define CAPSTAN_TRAINER_SESSION_CHECK_FINAL_H_

#include <string>

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Opens a run's final/ as its users will, and compares what that model says of
// a few tokens with what the one in memory says. Collective; all ranks get the
// same outcome. A folder that is another model is removed: the last checkpoint
// has it all. One that can't be opened stays, and is an error, too. OK without
// a look at models that aren't of tokens, that no plugin of the trainer's own
// reads, or whose copy of up to 1 GiB has no place in memory.
absl::Status CheckFinal(const std::string& folder, Session* session);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_CHECK_FINAL_H_
