// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_DESK_RUN_FOLDER_FILE_TIMES_H_
#define CAPSTAN_DESK_RUN_FOLDER_FILE_TIMES_H_

#include <string>

namespace capstan {

// Times are Unix seconds.
double NowSeconds();
// When the file was last written, or 0 if there is none.
double WrittenAt(const std::string& path);

// For how many seconds a run may write nothing, whose steps take `step_seconds`
// (negative: unknown), and yet be taken to go on: two minutes, or twenty steps.
double PatienceFor(double step_seconds);

}  // namespace capstan

#endif  // CAPSTAN_DESK_RUN_FOLDER_FILE_TIMES_H_
