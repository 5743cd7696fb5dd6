// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_TRAINER_SESSION_START_REPORTER_H_
#define CAPSTAN_TRAINER_SESSION_START_REPORTER_H_

#include <string>

#include "absl/status/status.h"
#include "trainer/session/session.h"

namespace capstan {

// Opens rank 0's reporter, and writes config.pbtxt, the banner and the notes of
// the job, of its data and, if not empty, `note`. After a restart by the
// launcher it prints only what is new to the user. Called at the end of set-up.
// Collective.
absl::Status StartReporter(Session* session, const std::string& note);

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_SESSION_START_REPORTER_H_
