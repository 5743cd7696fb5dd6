// SPDX-License-Identifier: Apache-2.0
//
// A file with rank 0's address in a folder that all hosts share, for launchers
// that don't provide the address.
#ifndef CAPSTAN_CLUSTER_MEET_MEETING_FILE_H_
#define CAPSTAN_CLUSTER_MEET_MEETING_FILE_H_

#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cluster/meet/protocol.h"

namespace capstan {

// Parses a file's text, a MeetingPlace's frame; INVALID_ARGUMENT for any other
// text.
absl::StatusOr<MeetingPlace> ParseMeetingPlace(absl::string_view text);

// Returns FOLDER/.meeting-KEY, with the key escaped so that different keys have
// different files.
std::string MeetingFilePath(const std::string& folder,
                            const std::string& run_key);

// Reads a meeting file, even on NFS as soon as another host has written it.
// NOT_FOUND if there is none.
absl::StatusOr<MeetingPlace> ReadMeetingPlace(const std::string& path);

// A published file. Only this user can read it, since it holds the token.
class MeetingFile {
 public:
  // Replaces an existing file; creates the folder.
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

#endif  // CAPSTAN_CLUSTER_MEET_MEETING_FILE_H_
