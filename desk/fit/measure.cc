// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/measure.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/digest.h"
#include "base/files.h"
#include "base/gpus.h"
#include "base/json.h"
#include "base/machine.h"
#include "base/status.h"
#include "trainer/metrics/console.h"

namespace capstan::fit {
namespace {

constexpr double kLongestSeconds = 120.0;  // of a trial with its start
constexpr int kTries = 3;

double At(const std::vector<double>& sorted, double part) {
  const double place = part * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] +
         (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

// "" if there is no home.
std::string CacheFolder() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const char* const home = std::getenv("HOME");
  if (cache != nullptr && *cache == '/') {
    return absl::StrCat(cache, "/capstan/fit");
  }
  if (home != nullptr && *home == '/') {
    return absl::StrCat(home, "/.cache/capstan/fit");
  }
  return "";
}

// What measured times depend on besides the candidate.
std::string Identity(const std::string& config) {
  std::string text = config;
  struct stat file;
  // The core's library, and with it the trainer, as it was built.
  for (const char* name : {"trainer", "libcapstan_core.so"}) {
    const std::string path = absl::StrCat(ExecutableFolder(), "/", name);
    if (stat(path.c_str(), &file) == 0) {
      absl::StrAppend(&text, " ", file.st_size, " ", file.st_mtime);
    }
  }
  absl::StrAppend(&text, " cores ", AvailableCores());
  for (const auto& gpu : Gpus().gpus) absl::StrAppend(&text, " ", gpu.name);
  for (const char* name : {"OMP_NUM_THREADS", "CAPSTAN_CPU_COLLECTIVES"}) {
    const char* const value = std::getenv(name);
    absl::StrAppend(&text, " ", name, "=", value == nullptr ? "" : value);
  }
  // Of the processor.
  const std::string cpus = ReadWholeFile("/proc/cpuinfo").value_or("");
  for (const absl::string_view line : absl::StrSplit(cpus, '\n')) {
    if (!absl::StartsWith(line, "model name")) continue;
    absl::StrAppend(&text, " ", line);
    break;
  }
  return text;
}

// What a failed run has said: the last line that isn't empty.
std::string LastLine(const std::string& path) {
  const std::string text = ReadWholeFile(path).value_or("");
  std::string last;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!line.empty()) last = std::string(line);
  }
  return PrintableText(
      last.empty() ? "it printed nothing: the folder for temporary files "
                     "(TMPDIR) may be full"
                   : last);
}

}  // namespace

Measurer::Measurer(const RunOptions& options, const std::string& config,
                   bool again, std::function<void(const std::string&)> progress)
    : options_(options), progress_(std::move(progress)) {
  const std::string cache = CacheFolder();
  if (cache.empty()) return;
  kept_file_ = absl::StrCat(
      cache, "/", Sha256Text(Identity(config)).substr(0, 32), ".json");
  if (again) return;
  const auto text = ReadWholeFile(kept_file_);
  if (!text.ok()) return;
  auto kept = MeasuredOf(kept_file_, ParseJson<nlohmann::ordered_json>(*text));
  if (kept.ok()) kept_ = *std::move(kept);
}

void Measurer::Keep() const {
  if (kept_file_.empty()) return;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const Measured& one : taken_) all.push_back(AsJson(one));
  for (const Measured& one : kept_) {
    if (std::none_of(taken_.begin(), taken_.end(), [&one](const Measured& t) {
          return SameSettings(one, t);
        })) {
      all.push_back(AsJson(one));
    }
  }
  // Without it the next call measures again.
  if (MakeFolder(CacheFolder()).ok()) {
    WriteWholeFile(kept_file_, JsonText(all)).IgnoreError();
  }
}

absl::StatusOr<Measured> Measurer::Measure(const Candidate& candidate,
                                           double seconds) {
  Measured measured = StepOf(candidate);
  for (const Measured& known : kept_) {
    if (!SameSettings(known, measured)) continue;
    disturbed_ = std::max(disturbed_, known.others);
    return known;
  }
  CAPSTAN_RETURN_IF_ERROR(folder_.status());
  has_measured_ = true;
  progress_(absl::StrCat(candidate.Strategy(), ", ", candidate.ranks,
                         candidate.ranks == 1 ? " rank" : " ranks",
                         ", micro-batch ", candidate.choice.micro_batch, ", ",
                         candidate.Checkpointing()));
  std::vector<std::string> words = WordsOf(options_);
  words.insert(words.begin(), {"trainer", "train"});
  std::vector<std::string> sets = candidate.Overrides();
  // It is ended from outside.
  sets.push_back("train.max_steps=1000000");
  sets.push_back("train.sample_prompts=");
  for (std::string& set : sets) {
    words.push_back("--set");
    words.push_back(std::move(set));
  }
  init::TrialLimits limits;
  limits.steps = 4;
  limits.seconds = seconds;
  limits.all_seconds = kLongestSeconds;
  // The least disturbed of some tries.
  init::TriedSteps tried;
  for (int i = 0; i < kTries; ++i) {
    init::TriedSteps one = init::TrySteps(words, folder_.path(), limits);
    const bool better = tried.seconds.empty() || one.others < tried.others;
    if (better && !one.seconds.empty()) tried = std::move(one);
    if (tried.seconds.empty() || tried.others < kQuietCores) break;
  }
  disturbed_ = std::max(disturbed_, tried.others);
  // Caches and the allocator settle in the first steps.
  if (tried.seconds.size() > 6) {
    tried.seconds.erase(tried.seconds.begin(), tried.seconds.begin() + 2);
  }
  if (tried.seconds.empty()) {
    return absl::FailedPreconditionError(
        LastLine(absl::StrCat(folder_.path(), "/log")));
  }
  std::sort(tried.seconds.begin(), tried.seconds.end());
  // The lower quartile: what disturbs a machine makes steps slower, not faster.
  measured.seconds = At(tried.seconds, 0.25);
  measured.low = At(tried.seconds, 0.05);
  measured.high = At(tried.seconds, 0.95);
  measured.exposed = std::min(tried.exposed, measured.low);
  measured.others = tried.others;
  measured.sent = tried.bytes_sent;
  measured.process = tried.process;
  // What is kept of several times is all of them together.
  const auto before = std::find_if(
      taken_.begin(), taken_.end(),
      [&measured](const Measured& one) { return SameSettings(one, measured); });
  if (before == taken_.end()) {
    taken_.push_back(measured);
  } else {
    *before = Together({*before, measured});
  }
  Keep();
  return measured;
}

Measured Measurer::Together(const std::vector<Measured>& several) {
  Measured all = several.front();
  std::vector<double> seconds;
  for (const Measured& one : several) {
    seconds.push_back(one.seconds);
    all.others = std::max(all.others, one.others);
    all.exposed = std::min(all.exposed, one.exposed);
    all.low = std::min(all.low, one.low);
    all.high = std::max(all.high, one.high);
    all.process = std::max(all.process, one.process);
  }
  std::sort(seconds.begin(), seconds.end());
  all.seconds = At(seconds, 0.5);
  return all;
}

}  // namespace capstan::fit
