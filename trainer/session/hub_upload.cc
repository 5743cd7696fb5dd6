// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/hub_upload.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "trainer/session/resume.h"

namespace capstan {
std::vector<std::string> UploadCommand(const HubUpload& upload,
                                       const std::string& folder) {
  std::vector<std::string> command = {"hf", "upload", upload.repo(), folder,
                                      "."};
  if (upload.private_()) command.push_back("--private");
  return command;
}

absl::StatusOr<std::string> UploadToHub(const HubUpload& upload,
                                        const std::string& folder) {
  const std::vector<std::string> command = UploadCommand(upload, folder);
  const std::string shown = ShellText(command);
  std::vector<char*> arguments;
  for (const std::string& word : command) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, command[0].c_str(), nullptr, nullptr,
                                 arguments.data(), environ);
  if (error == ENOENT || error == EACCES) {
    return absl::StrCat(
        "hub_upload: there is no program `hf` on PATH, so that "
        "nothing was uploaded; with it: ",
        shown);
  }
  if (error != 0) {
    return absl::UnknownError(absl::StrCat(
        "hub_upload: ", shown, " can't be run: ", std::strerror(error)));
  }
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    return absl::StrCat("uploaded ", folder, " to ", upload.repo());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "hub_upload: ", folder, " is written, but its upload failed (",
      WIFEXITED(status) ? absl::StrCat("exit code ", WEXITSTATUS(status))
                        : absl::StrCat("signal ", WTERMSIG(status)),
      "): see above for hf's own words, then: ", shown));
}

}  // namespace capstan
