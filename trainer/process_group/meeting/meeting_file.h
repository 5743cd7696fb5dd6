// SPDX-License-Identifier: Apache-2.0
//
// Where rank 0 is, in a file of a folder that all hosts share: for launchers
// that don't tell.
#ifndef CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_MEETING_FILE_H_
#define CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_MEETING_FILE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan {

struct MeetingPlace {
  std::vector<std::string> addresses;  // numeric, best first
  int port = 0;
  std::string token;  // empty if the launcher has given one to all ranks
  // Who has written it.
  std::string host;
  int64_t pid = 0;
};

// One "name value" a line. Parsing is pure; INVALID_ARGUMENT unless `text` is
// such a file, of at most kMaxMeetingFileBytes.
constexpr size_t kMaxMeetingFileBytes = 4096;
std::string FormatMeetingPlace(const MeetingPlace& place);
absl::StatusOr<MeetingPlace> ParseMeetingPlace(absl::string_view text);

// FOLDER/.meeting-KEY, a file name for any key; two keys never share one.
std::string MeetingFilePath(const std::string& folder,
                            const std::string& run_key);

// Sees a file that another host has just written, on NFS too. NOT_FOUND if
// there is none.
absl::StatusOr<MeetingPlace> ReadMeetingPlace(const std::string& path);

// A published file. Only this user can read it, for its token.
class MeetingFile {
 public:
  // Replaces what is there; creates the folder.
  static absl::StatusOr<std::unique_ptr<MeetingFile>> Publish(
      const std::string& path, const MeetingPlace& place);
  // Removes the file, unless another run has replaced it.
  ~MeetingFile();
  MeetingFile(const MeetingFile&) = delete;
  MeetingFile& operator=(const MeetingFile&) = delete;

 private:
  MeetingFile(std::string path, std::string text)
      : path_(std::move(path)), text_(std::move(text)) {}

  const std::string path_;
  const std::string text_;
};

}  // namespace capstan

#endif  // CAPSTAN_TRAINER_PROCESS_GROUP_MEETING_MEETING_FILE_H_
