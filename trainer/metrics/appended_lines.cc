// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/appended_lines.h"

#include <chrono>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/quiet_thread.h"
#include "base/status.h"

namespace capstan {
namespace {

// Whether the file ends within a line.
absl::StatusOr<bool> EndsInALine(const std::string& path) {
  if (!IsRegularFile(path)) return false;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<InputFile> file,
                           InputFile::Open(path));
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t bytes, file->Bytes());
  if (bytes == 0) return false;
  char last = 0;
  CAPSTAN_RETURN_IF_ERROR(file->ReadAt(bytes - 1, 1, &last));
  return last != '\n';
}

}  // namespace

double UnixSeconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::round(std::chrono::duration<double, std::milli>(now).count()) /
         1000.0;
}

absl::StatusOr<AppendedLines> AppendedLines::Open(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const bool torn, EndsInALine(path));
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kAtEnd));
  if (torn) CAPSTAN_RETURN_IF_ERROR(file.Append("\n"));
  return AppendedLines(std::move(file));
}

absl::Status AppendedLines::Add(absl::string_view object) {
  return file_.Append(absl::StrCat(object, "\n"));
}

LineWriter::LineWriter(AppendedLines lines)
    : lines_(std::move(lines)), thread_(QuietThread([this] { Write(); })) {}

LineWriter::~LineWriter() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool LineWriter::idle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return waiting_.empty() && !writing_;
}

absl::Status LineWriter::Add(const std::string& object) {
  std::lock_guard<std::mutex> lock(mutex_);
  absl::StrAppend(&waiting_, waiting_.empty() ? "" : "\n", object);
  changed_.notify_all();
  return status_;
}

void LineWriter::Write() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string lines = std::exchange(waiting_, {});
    writing_ = true;
    lock.unlock();
    absl::Status written;
    try {
      written = lines_.Add(lines);
    } catch (...) {
      written = CurrentExceptionToStatus();
    }
    lock.lock();
    writing_ = false;
    status_.Update(written);
  }
}

}  // namespace capstan
