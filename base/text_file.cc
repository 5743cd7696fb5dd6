// SPDX-License-Identifier: Apache-2.0
#include "base/text_file.h"

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <sstream>

namespace capstan {

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return absl::ErrnoToStatus(errno, path);
  std::ostringstream text;
  text << in.rdbuf();
  if (in.bad()) return absl::ErrnoToStatus(errno, path);
  return text.str();
}

absl::Status WriteTextFile(const std::string& path, const std::string& text) {
  FILE* file = std::fopen(path.c_str(), "wb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, path);
  errno = 0;
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size();
  const int write_error = errno;
  const bool closed = std::fclose(file) == 0;
  if (written && closed) return absl::OkStatus();
  return absl::ErrnoToStatus(written ? errno : write_error, path);
}

}  // namespace capstan
