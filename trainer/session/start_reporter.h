// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_START_REPORTER_H_
#define CAPSTAN_TRAINER_SESSION_START_REPORTER_H_

#include <string>

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Opens rank 0's reporter, and with it the run's output: config.pbtxt, the
// banner and the notes of the job, its data and, if not empty, `note`. After a
// restart by the launcher only what the user doesn't know yet. Call at the end
// of set-up. Collective.
absl::Status StartReporter(Session* session, const std::string& note);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_START_REPORTER_H_
