// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/grace.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cluster/launch/progress.h"
#include "cluster/launch/signals.h"

namespace capstan {
namespace {

// SLURM's default KillWait: the time from SIGTERM at the end of a job's time to
// SIGKILL.
constexpr int64_t kKillWait = 30;

constexpr int64_t kUnknown = -1;
std::atomic<int64_t> grace_seconds{kUnknown};
std::atomic<int64_t> end_time{kUnknown};

int64_t NumberIn(const char* variable) {
  const char* const text = getenv(variable);
  int64_t number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) && number >= 0
             ? number
             : kUnknown;
}

// In a signal handler nothing may be allocated.
class Note {
 public:
  Note(char* out, size_t size) : out_(out), size_(size) {}

  Note& operator<<(const char* text) {
    const size_t length = std::min(std::strlen(text), size_ - used_);
    std::memcpy(out_ + used_, text, length);
    used_ += length;
    return *this;
  }
  Note& operator<<(int64_t number) {
    char digits[24];
    char* begin = digits + sizeof(digits) - 1;
    *begin = '\0';
    do {
      *--begin = static_cast<char>('0' + number % 10);
      number /= 10;
    } while (number > 0);
    return *this << begin;
  }
  size_t used() const { return used_; }

 private:
  char* const out_;
  const size_t size_;
  size_t used_ = 0;
};

}  // namespace

void ReadGrace() {
  grace_seconds = NumberIn("CAPSTAN_STOP_GRACE");
  end_time = NumberIn("SLURM_JOB_END_TIME");
}

size_t StopNote(int signal, int64_t now, int64_t step_ms, char* out,
                size_t size) {
  Note note(out, size);
  note << "stopping; ";
  int64_t left = grace_seconds.load();
  const int64_t end = end_time.load();
  if (left >= 0) {
    note << "it is killed in " << left << " s; ";
  } else if (end > now) {
    // A preempted job may have less.
    left = end - now;
    note << "the job ends in " << left << " s at the latest; ";
  } else if (end >= 0) {
    left = kKillWait;
    note << "the job's time is up, and SLURM kills it after its KillWait, by "
            "default "
         << left << " s; ";
  }
  if (left >= 0 && step_ms > 1000 * left) {
    note << "a step takes " << (step_ms + 999) / 1000
         << " s, so that this one may be lost; ";
  }
  note << (signal == SIGINT || signal == SIGTERM
               ? "a second signal stops at once"
               : "SIGINT stops at once");
  return note.used();
}

std::string StopText(int signal) {
  char note[512];
  const size_t used =
      StopNote(signal, time(nullptr), StepMilliseconds(), note, sizeof(note));
  return absl::StrCat(SignalName(signal), ": ", absl::string_view(note, used));
}

}  // namespace capstan
