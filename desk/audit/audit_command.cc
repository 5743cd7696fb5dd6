// SPDX-License-Identifier: Apache-2.0
//
// audit: whether a run's receipts hold (train.receipts), and whether its steps,
// run again, come out the same.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "desk/audit/signature.h"
#include "desk/audit/steps_again.h"
#include "desk/run_folder/run_record.h"
#include "host/config/load_config.h"
#include "host/storage/cache.h"
#include "host/storage/storage.h"
#include "trainer/checkpoint/checkpoint_folders.h"
#include "trainer/commands/command.h"
#include "trainer/commands/prepare.h"
#include "trainer/metrics/console.h"
#include "trainer/metrics/progress_bar.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {
namespace {

using Json = nlohmann::ordered_json;
using Line = ReceiptChain::Line;

struct AuditOptions {
  std::string run;
  std::vector<int64_t> steps;
  int64_t sample = 0;
  absl::optional<int64_t> seed;  // unset: nobody can foresee it
  std::string sign;
  std::string key;
  bool json = false;
  std::vector<std::string> overrides;
  std::vector<std::string> plugin_path;
};

struct Audited {
  std::string folder;
  Receipts receipts;
  std::set<int64_t> steps;     // that have a line
  int64_t begun = 0;           // processes
  std::string gaps;            // steps without a line, for users
  int64_t seed = 0;            // what --sample was drawn by
  bool deterministic = false;  // the newest of them
  std::string signature;       // what is known of it, for users
  std::vector<int64_t> again;  // steps that were run again
  absl::optional<ReceiptDifference> difference;
};

// Those without a line among `steps` and up to `newest`: "101 to 200, 250"; "":
// none.
std::string Gaps(std::set<int64_t> steps, int64_t newest) {
  if (!steps.empty() && *steps.rbegin() < newest) steps.insert(newest + 1);
  std::vector<std::string> gaps;
  absl::optional<int64_t> before;
  for (const int64_t step : steps) {
    if (before.has_value() && step > *before + 1) {
      gaps.push_back(step == *before + 2
                         ? absl::StrCat(step - 1)
                         : absl::StrCat(*before + 1, " to ", step - 1));
    }
    before = step;
  }
  return absl::StrJoin(gaps, ", ");
}

absl::StatusOr<Audited> Read(const AuditOptions& options) {
  Audited audited;
  // Steps that run again need checkpoints.
  const bool again = !options.steps.empty() || options.sample > 0;
  if (!options.sign.empty() && IsAddress(options.run)) {
    return FieldError(
        "--sign", absl::StrCat(options.run,
                               " is read from a copy, which a signature would "
                               "change alone: sign the folder in which the run "
                               "works, and its uploads take it along"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::string run,
      LocalCopy(options.run, again ? CheckpointsOfRun : ManifestsOfRun));
  CAPSTAN_ASSIGN_OR_RETURN(audited.folder, FindRun(run));
  absl::StatusOr<Receipts> receipts = ReadReceipts(audited.folder);
  if (absl::IsNotFound(receipts.status())) {
    return absl::NotFoundError(
        absl::StrCat(audited.folder, " has no ", kReceiptsFile,
                     ": a run writes it with --set train.receipts=true"));
  }
  CAPSTAN_RETURN_IF_ERROR(receipts.status());
  audited.receipts = *std::move(receipts);
  if (audited.receipts.lines.empty()) {
    return absl::DataLossError(
        absl::StrCat(audited.folder, "/", kReceiptsFile,
                     " has no whole line: it isn't what a run has written"));
  }
  for (const Line& line : audited.receipts.lines) {
    if (IsStepReceipt(line)) audited.steps.insert(StepOfReceipt(line));
    if (line.contains("run")) ++audited.begun;
    const auto how = line.find("how");
    if (how == line.end() || !how->is_object()) continue;
    audited.deterministic = how->find("deterministic") != how->end() &&
                            (*how)["deterministic"] == true;
  }
  const std::vector<StoredCheckpoint> stored = WholeCheckpoints(audited.folder);
  audited.gaps = Gaps(audited.steps, stored.empty() ? 0 : stored.front().step);
  return audited;
}

// The signed line must be one of the chain's.
absl::Status CheckSignature(const std::string& key, Audited* audited) {
  const std::string path = audited->folder + "/receipts.sig";
  CAPSTAN_ASSIGN_OR_RETURN(const SignedReceipts receipts,
                           ReadSignature(path, key));
  const std::vector<Line>& lines = audited->receipts.lines;
  const auto found =
      std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
        return ReceiptText(line, "seal") == receipts.seal &&
               ReceiptText(line, "chain") == receipts.chain;
      });
  if (found == lines.end()) {
    return absl::DataLossError(
        absl::StrCat(path, " is of other receipts than ", kReceiptsFile,
                     " beside it: they were replaced after they were signed"));
  }
  audited->signature = absl::StrCat("holds, of step ", receipts.step);
  const auto unsigned_lines = lines.end() - found - 1;
  if (unsigned_lines > 0) {
    absl::StrAppend(&audited->signature, "; ", unsigned_lines,
                    " lines behind it aren't signed");
  }
  return absl::OkStatus();
}

absl::Status SignNow(const std::string& key, Audited* audited) {
  if (audited->steps.empty()) {
    return FieldError("--sign", "there is no step yet to sign");
  }
  const ReceiptChain& chain = audited->receipts.chain;
  const std::string path = audited->folder + "/receipts.sig";
  const int64_t step = StepOfReceipt(audited->receipts.lines.back());
  CAPSTAN_RETURN_IF_ERROR(Sign({step, chain.chain(), chain.seal()}, key, path));
  audited->signature = absl::StrCat("written to ", path);
  return absl::OkStatus();
}

// Those asked for, and `sample` others drawn from all.
absl::StatusOr<std::set<int64_t>> StepsToRun(const AuditOptions& options,
                                             const Audited& audited) {
  std::set<int64_t> steps;
  if (options.seed.has_value() && options.sample == 0) {
    return FieldError("--seed", "is for --sample");
  }
  if (!options.overrides.empty() && options.steps.empty() &&
      options.sample == 0) {
    return FieldError(
        "--set", "is for steps run again: name them by --step or --sample");
  }
  for (const int64_t step : options.steps) {
    if (audited.steps.count(step) == 0) {
      return FieldError(
          "--step",
          audited.steps.empty()
              ? absl::StrCat(step, ": the receipts have no step yet")
              : absl::StrCat("the receipts have no step ", step,
                             ", but those from ", *audited.steps.begin(),
                             " to ", *audited.steps.rbegin()));
    }
    steps.insert(step);
  }
  const std::vector<int64_t> all(audited.steps.begin(), audited.steps.end());
  const auto size = static_cast<int64_t>(all.size());
  for (int64_t i = 0; i < std::min(options.sample, size); ++i) {
    steps.insert(all[PermutedIndex(
        RandomKey(static_cast<uint64_t>(audited.seed), "audit"), i, size)]);
  }
  return steps;
}

// Returns the signal that stopped it, or 0.
absl::StatusOr<int> RunAgain(const AuditOptions& options,
                             const std::set<int64_t>& steps, Audited* audited) {
  for (const int64_t step : steps) {
    WorkBar bar(absl::StrCat("step ", step, " again"), STDERR_FILENO);
    StepsAgainRequest request;
    request.run = audited->folder;
    request.step = step;
    request.overrides = options.overrides;
    request.plugin_path = AllFromCaller(options.plugin_path);
    request.progress = [&bar](int64_t done, int64_t of) {
      bar.Show(static_cast<double>(done) /
                   static_cast<double>(std::max<int64_t>(of, 1)),
               "steps");
    };
    CAPSTAN_ASSIGN_OR_RETURN(const StepsAgain again,
                             RunStepsAgain(request, audited->receipts));
    if (again.signal != 0) return again.signal;
    audited->again.push_back(step);
    audited->difference =
        FindReceiptDifference(audited->receipts, again.receipts);
    if (audited->difference.has_value()) break;
  }
  return 0;
}

std::string DifferenceText(const Audited& audited) {
  const ReceiptDifference& difference = *audited.difference;
  const std::string values =
      absl::StrCat(difference.recorded, ", and now it is ", difference.again);
  absl::string_view key = difference.key;
  if (absl::ConsumePrefix(&key, "run ")) {
    return absl::StrCat("this isn't the run of the receipts: ", key, " was ",
                        values);
  }
  if (key == kBeginning) {
    return absl::StrCat(
        difference.step == 0 ? "the initial weights aren't"
                             : absl::StrCat("the checkpoint after step ",
                                            difference.step, " isn't"),
        " what the receipts have: the weights' digest was ", values);
  }
  std::string text =
      absl::StrCat("step ", difference.step,
                   " run again differs: ", MeaningOf(difference.key), "; ", key,
                   " was ", values);
  if (!audited.deterministic && difference.key != "samples") {
    absl::StrAppend(
        &text,
        ". The run wasn't deterministic (train.deterministic): with other "
        "ranks or threads, another strategy or on another machine its sums may "
        "be rounded otherwise");
  }
  return text;
}

void Print(const AuditOptions& options, const Audited& audited) {
  const ReceiptChain& chain = audited.receipts.chain;
  std::vector<std::pair<std::string, std::string>> rows = {
      {"run", audited.folder},
      {"steps", audited.steps.empty()
                    ? "none yet"
                    : absl::StrCat(audited.steps.size(), ", from ",
                                   *audited.steps.begin(), " to ",
                                   *audited.steps.rbegin())},
      {"begun", absl::StrCat(audited.begun, " times")},
      {"chain", chain.chain()},
      {"receipts", "hold: each line is of the one before it"}};
  if (audited.begun == 1) rows[2].second = "once";
  if (!audited.gaps.empty()) {
    rows.emplace_back("missing", absl::StrCat("steps ", audited.gaps));
  }
  if (!audited.signature.empty()) {
    rows.emplace_back("signature", audited.signature);
  }
  if (options.sample > 0) {
    rows.emplace_back("drawn by", absl::StrCat("--seed=", audited.seed));
  }
  if (!audited.again.empty() && !audited.difference.has_value()) {
    rows.emplace_back("run again",
                      absl::StrCat(absl::StrJoin(audited.again, ", "),
                                   ": the same to the bit"));
  }
  const Console console(STDOUT_FILENO);
  console.Write(PrintableText(TableText(rows)));
}

std::string AsJson(const Audited& audited) {
  Json json = {{"run", audited.folder},
               {"steps", audited.steps.size()},
               {"first_step", nullptr},
               {"last_step", nullptr},
               {"begun", audited.begun},
               {"missing", audited.gaps},
               {"deterministic", audited.deterministic},
               {"chain", audited.receipts.chain.chain()},
               {"seal", audited.receipts.chain.seal()},
               {"signature", nullptr},
               {"seed", audited.seed},
               {"again", audited.again},
               {"difference", nullptr}};
  if (!audited.steps.empty()) {
    json["first_step"] = *audited.steps.begin();
    json["last_step"] = *audited.steps.rbegin();
  }
  if (!audited.signature.empty()) json["signature"] = audited.signature;
  if (audited.difference.has_value()) {
    const ReceiptDifference& difference = *audited.difference;
    json["difference"] = {{"step", difference.step},
                          {"key", difference.key},
                          {"recorded", difference.recorded},
                          {"again", difference.again}};
  }
  return JsonText(json, 1) + "\n";
}

void AddFlags(Flags& flags, AuditOptions* options) {
  flags.Add("run", &options->run, "A run's folder (runs/NAME/latest)")
      .Type("RUN")
      .Required();
  flags
      .Add("--step", &options->steps,
           "Run these steps again, each from the checkpoint before it, and "
           "compare them with their receipts")
      .Delimiter(',');
  flags
      .Add("--sample", &options->sample,
           "The same of so many steps, drawn at random")
      .Positive();
  flags.Add("--seed", &options->seed,
            "Which --sample draws; default: others each time");
  flags
      .Add("--sign", &options->sign,
           "Sign the receipts by this private key, in RUN/receipts.sig")
      .Type("PEM");
  flags.Add("--key", &options->key, "Check RUN/receipts.sig by this public key")
      .Type("PEM");
  flags.Add("--json", &options->json, "Print JSON (docs/receipts.md)");
  AddSet(flags, &options->overrides,
         "Changes the config of steps run again: strategy=capstan.fsdp");
  AddPluginPath(flags, &options->plugin_path);
}

// Receipts that don't hold, for programs.
int TellThatNothingHolds(const AuditOptions& options, const absl::Status& why) {
  Json json = {{"run", FindRun(options.run).value_or(options.run)},
               {"chain", nullptr},
               {"error", std::string(why.message())}};
  std::cout << JsonText(json, 1) << "\n" << std::flush;
  return 1;
}

absl::StatusOr<int> Audit(const AuditOptions& options) {
  absl::StatusOr<Audited> read = Read(options);
  if (options.json && absl::IsDataLoss(read.status())) {
    return TellThatNothingHolds(options, read.status());
  }
  CAPSTAN_RETURN_IF_ERROR(read.status());
  Audited audited = *std::move(read);
  if (!options.key.empty()) {
    CAPSTAN_RETURN_IF_ERROR(CheckSignature(options.key, &audited));
  }
  audited.seed = options.seed.has_value()
                     ? *options.seed
                     : static_cast<int64_t>(std::random_device()());
  CAPSTAN_ASSIGN_OR_RETURN(const std::set<int64_t> steps,
                           StepsToRun(options, audited));
  CAPSTAN_ASSIGN_OR_RETURN(const int signal,
                           RunAgain(options, steps, &audited));
  if (signal != 0) return 128 + signal;
  // What doesn't hold isn't signed.
  if (!options.sign.empty() && !audited.difference.has_value()) {
    CAPSTAN_RETURN_IF_ERROR(SignNow(options.sign, &audited));
  }
  if (options.json) {
    std::cout << AsJson(audited) << std::flush;
  } else {
    Print(options, audited);
  }
  if (!audited.difference.has_value()) return 0;
  if (!options.json) return absl::DataLossError(DifferenceText(audited));
  return 1;
}

const RegisterFunction<AuditOptions> audit("audit", AddFlags, Audit);

}  // namespace
}  // namespace capstan
