// SPDX-License-Identifier: Apache-2.0
#include "desk/watch/step_rows.h"

#include <poll.h>
#include <signal.h>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "desk/run_folder/run_record.h"

namespace capstan {
namespace {

using nlohmann::json;

constexpr size_t kMostBytes = size_t{256} << 20;

// Appends what there is. False at the end.
bool ReadSome(int fd, std::string* text) {
  char bytes[1 << 16];
  const ssize_t got = read(fd, bytes, sizeof(bytes));
  if (got <= 0) return false;
  text->append(bytes, got);
  return true;
}

// Reads both until they end, or `stop` says why not to.
absl::Status ReadAll(int out_fd, int err_fd,
                     const std::function<absl::Status()>& stop,
                     std::string* out, std::string* err) {
  pollfd ends[] = {{out_fd, POLLIN, 0}, {err_fd, POLLIN, 0}};
  std::string* const texts[] = {out, err};
  while (ends[0].fd >= 0 || ends[1].fd >= 0) {
    CAPSTAN_RETURN_IF_ERROR(stop());
    poll(ends, 2, /*milliseconds=*/200);
    for (int i = 0; i < 2; ++i) {
      if (ends[i].fd < 0 || ends[i].revents == 0) continue;
      if (!ReadSome(ends[i].fd, texts[i])) ends[i].fd = -1;
    }
    if (out->size() + err->size() > kMostBytes) {
      return absl::ResourceExhaustedError("its rows are too large to show");
    }
  }
  return absl::OkStatus();
}

// `who`'s own error, else how it ended.
std::string WhyNot(const ChildEnd& end, const std::string& err) {
  for (absl::string_view line : absl::StrSplit(err, '\n')) {
    if (absl::ConsumePrefix(&line, "ERROR: ")) return std::string(line);
  }
  return absl::StrCat("`trainer who` failed: ", end.Text());
}

}  // namespace

absl::StatusOr<json> StepRows::Find(const std::string& folder, int64_t step,
                                    const std::function<bool()>& stop) {
  const std::unique_lock<std::mutex> one(one_, std::try_to_lock);
  if (!one.owns_lock()) {
    return absl::UnavailableError(
        "the rows of another step are being looked for: ask again then");
  }
  Pipe out_pipe, err_pipe;
  Program program;
  program.words = {"trainer",
                   "who",
                   folder,
                   absl::StrCat("--step=", step),
                   absl::StrCat("--top=", kMostRows),
                   "--json"};
  program.path = trainer_;
  if (IsInUse(folder)) program.variables = {"CUDA_VISIBLE_DEVICES="};
  program.input = Program::kNull;
  program.output = out_pipe.write_end();
  program.errors = err_pipe.write_end();
  program.own_group = program.dies_with_parent = true;
  CAPSTAN_ASSIGN_OR_RETURN(const pid_t child, StartProgram(program));
  out_pipe.CloseWrite();
  err_pipe.CloseWrite();
  const double end = MonotonicSeconds() + limit_seconds_;
  std::string out, err;
  const absl::Status read = ReadAll(
      out_pipe.read_end(), err_pipe.read_end(),
      [&]() -> absl::Status {
        if (stop()) return absl::CancelledError("the server stops");
        if (MonotonicSeconds() < end) return absl::OkStatus();
        return absl::DeadlineExceededError(
            absl::StrCat("`trainer who` took longer than ", limit_seconds_,
                         " s: run it in a terminal: trainer who ", folder,
                         " --step=", step));
      },
      &out, &err);
  if (!read.ok()) kill(-child, SIGKILL);
  const ChildEnd ended = WaitFor(child);
  CAPSTAN_RETURN_IF_ERROR(read);
  json found = ended.ok() ? ParseJson<json>(out) : json();
  if (!found.is_object() || !found["rows"].is_array()) {
    const std::string why = WhyNot(ended, err);
    return absl::StartsWith(why, "--step: ") ? absl::OutOfRangeError(why)
                                             : absl::InternalError(why);
  }
  for (json& row : found["rows"]) {
    for (json& text : row["texts"]) text.erase("tokens");
  }
  return found;
}

}  // namespace capstan
