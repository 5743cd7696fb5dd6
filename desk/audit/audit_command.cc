// SPDX-License-Identifier: Apache-2.0
//
// audit: whether a run's receipts hold (train.receipts), and whether its steps,
// run again, come out the same.
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/optional.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "base/random.h"
#include "base/status.h"
#include "cluster/launch/place.h"
#include "desk/audit/config_that_ran.h"
#include "desk/audit/difference_text.h"
#include "desk/audit/saved_weights.h"
#include "desk/audit/signature.h"
#include "desk/audit/steps_again.h"
#include "desk/run_folder/alone.h"
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
  std::set<int64_t> steps;       // that have a line
  int64_t begun = 0;             // processes
  std::string gaps;              // steps without a line, for users
  absl::optional<int64_t> seed;  // what --sample was drawn by, if it was
  bool deterministic = false;    // the newest of them
  std::string signature;         // what is known of it, for users
  std::vector<int64_t> again;    // steps that were run again
  absl::optional<ReceiptDifference> difference;
  std::string config;   // how config.pbtxt isn't the run's, for users
  std::string cut_off;  // which steps are missing at the end, likewise
  SavedWeights weights;
  // Whose plugins aren't those of the receipts, of steps run again.
  std::set<std::string> libraries;
};

// How far the run is, by what says so beside its receipts.
struct StepsDone {
  int64_t step = 0;
  std::string file;
};

StepsDone ReadStepsDone(const std::string& folder) {
  StepsDone done;
  const std::vector<StoredCheckpoint> stored = WholeCheckpoints(folder);
  if (!stored.empty()) done = {stored.front().step, stored.front().path};
  const Json summary = SummaryOf(folder);
  const auto found = summary.find("steps");
  const int64_t steps =
      found == summary.end() ? 0 : JsonInteger(*found).value_or(0);
  if (steps > done.step) done = {steps, folder + "/summary.json"};
  return done;
}

// "101 to 200", "250"
std::string StepsText(int64_t first, int64_t last) {
  return first == last ? absl::StrCat(first)
                       : absl::StrCat(first, " to ", last);
}

// Those without a line among `steps` and up to `done`: "101 to 200, 250"; "":
// none.
std::string Gaps(std::set<int64_t> steps, int64_t done) {
  if (!steps.empty() && *steps.rbegin() < done) steps.insert(done + 1);
  std::vector<std::string> gaps;
  absl::optional<int64_t> before;
  for (const int64_t step : steps) {
    if (before.has_value() && step > *before + 1) {
      gaps.push_back(StepsText(*before + 1, step - 1));
    }
    before = step;
  }
  return absl::StrJoin(gaps, ", ");
}

// Sets what is missing, where the run has done so many steps.
void FindMissing(const StepsDone& done, Audited* audited) {
  // Where a chain begins, its steps do.
  std::set<int64_t> known = audited->steps;
  int64_t last = 0;
  for (const Line& line : audited->receipts.lines) {
    last = std::max(last, StepOfReceipt(line));
  }
  if (known.empty()) known.insert(last);
  audited->gaps = Gaps(known, done.step);
  if (last >= done.step) return;
  audited->cut_off =
      absl::StrCat(audited->folder, "/", kReceiptsFile, " has no line of ",
                   last + 1 == done.step ? "step " : "steps ",
                   StepsText(last + 1, done.step),
                   ", which the run has done according to ", done.file,
                   ": lines were cut off its end, or the run went on without "
                   "train.receipts");
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
  // First, as a run that is going on writes its receipts before these.
  const StepsDone done = ReadStepsDone(audited.folder);
  absl::StatusOr<Receipts> receipts = ReadReceipts(audited.folder);
  if (absl::IsNotFound(receipts.status())) {
    return WithCode(absl::NotFoundError(absl::StrCat(
                        audited.folder, " has no ", kReceiptsFile,
                        ": a run writes it with --set train.receipts=true")),
                    "receipts/none");
  }
  CAPSTAN_RETURN_IF_ERROR(receipts.status());
  audited.receipts = *std::move(receipts);
  if (audited.receipts.lines.empty()) {
    return WithCode(absl::DataLossError(absl::StrCat(
                        audited.folder, "/", kReceiptsFile,
                        " has no whole line: it isn't what a run has written; "
                        "put the file as the run wrote it in its place")),
                    "receipts/chain");
  }
  for (const Line& line : audited.receipts.lines) {
    if (IsStepReceipt(line)) audited.steps.insert(StepOfReceipt(line));
    if (line.contains("run")) ++audited.begun;
    const auto how = line.find("how");
    if (how == line.end() || !how->is_object()) continue;
    audited.deterministic = how->find("deterministic") != how->end() &&
                            (*how)["deterministic"] == true;
  }
  FindMissing(done, &audited);
  const absl::StatusOr<std::string> config =
      ReadWholeFile(audited.folder + "/config.pbtxt");
  if (config.ok()) {
    audited.config = ConfigDifference(*config, audited.receipts);
  }
  return audited;
}

std::string SignaturePath(const Audited& audited) {
  return audited.folder + "/receipts.sig";
}

// The signed line must be one of the chain's.
absl::Status CheckSignature(const std::string& key, Audited* audited) {
  const std::string path = SignaturePath(*audited);
  if (!PathExists(path)) {
    return WithCode(absl::NotFoundError(absl::StrCat(
                        audited->folder, " isn't signed yet: `trainer audit ",
                        audited->folder, " --sign=key.pem` signs it")),
                    "receipts/signature");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const SignedReceipts receipts,
                           ReadSignature(path, key));
  const std::vector<Line>& lines = audited->receipts.lines;
  const auto found =
      std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
        return ReceiptText(line, "seal") == receipts.seal &&
               ReceiptText(line, "chain") == receipts.chain;
      });
  if (found == lines.end()) {
    return WithCode(absl::DataLossError(absl::StrCat(
                        path, " is of other receipts than ", kReceiptsFile,
                        " beside it: they were replaced, or lines cut off, "
                        "after they were signed")),
                    "receipts/signature");
  }
  audited->signature = absl::StrCat("holds, of step ", receipts.step);
  const auto unsigned_lines = lines.end() - found - 1;
  if (unsigned_lines > 0) {
    absl::StrAppend(&audited->signature, "; ", unsigned_lines,
                    unsigned_lines == 1 ? " line behind it isn't signed"
                                        : " lines behind it aren't signed");
  }
  return absl::OkStatus();
}

absl::Status SignNow(const std::string& key, Audited* audited) {
  if (audited->steps.empty()) {
    return FieldError("--sign", "there is no step yet to sign");
  }
  const ReceiptChain& chain = audited->receipts.chain;
  const std::string path = SignaturePath(*audited);
  const int64_t step = StepOfReceipt(audited->receipts.lines.back());
  CAPSTAN_RETURN_IF_ERROR(Sign({step, chain.chain(), chain.seal()}, key, path));
  audited->signature = absl::StrCat("written to ", path);
  return absl::OkStatus();
}

// Those asked for, and `sample` others drawn from all.
absl::StatusOr<std::set<int64_t>> StepsToRun(const AuditOptions& options,
                                             Audited* audited) {
  std::set<int64_t> steps;
  if (options.seed.has_value() && options.sample == 0) {
    return FieldError("--seed", "is for --sample");
  }
  if (!options.overrides.empty() && options.steps.empty() &&
      options.sample == 0) {
    return FieldError(
        "--set", "is for steps run again: name them by --step or --sample");
  }
  const std::set<int64_t>& all = audited->steps;
  for (const int64_t step : options.steps) {
    if (all.count(step) == 0) {
      return FieldError(
          "--step", all.empty()
                        ? absl::StrCat(step, ": the receipts have no step yet")
                        : absl::StrCat("the receipts have no step ", step,
                                       ", but those from ", *all.begin(),
                                       " to ", *all.rbegin()));
    }
    steps.insert(step);
  }
  const auto size = static_cast<int64_t>(all.size());
  if (options.sample >= size) steps = all;
  if (options.sample == 0 || options.sample >= size) return steps;
  audited->seed = options.seed.has_value()
                      ? *options.seed
                      : static_cast<int64_t>(std::random_device()());
  const uint64_t key =
      RandomKey(static_cast<uint64_t>(*audited->seed), "audit");
  const std::vector<int64_t> each(all.begin(), all.end());
  for (int64_t i = 0; i < options.sample; ++i) {
    steps.insert(each[PermutedIndex(key, i, size)]);
  }
  return steps;
}

// A launcher's environment, which the run of the steps would follow.
absl::Status CheckEnvironment() {
  const absl::StatusOr<Place> place = FindPlace(LaunchSettings(), 0);
  if (!place.ok()) return WithCode(place.status(), "launch/environment");
  return WithCode(CheckAlone("audit", *place), "launch/environment");
}

// Returns the signal that stopped it, or 0.
absl::StatusOr<int> RunAgain(const AuditOptions& options,
                             const std::set<int64_t>& steps, Audited* audited) {
  if (!steps.empty()) CAPSTAN_RETURN_IF_ERROR(CheckEnvironment());
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
    audited->difference =
        again.refused.has_value()
            ? again.refused
            : FindReceiptDifference(audited->receipts, again.receipts,
                                    options.overrides);
    if (!again.refused.has_value()) audited->again.push_back(step);
    for (const std::string& slot :
         OtherLibraries(audited->receipts, again.receipts, options.overrides)) {
      audited->libraries.insert(slot);
    }
    if (audited->difference.has_value()) break;
  }
  return 0;
}

// Behind the steps, which are run by a process without other threads.
void CompareWeights(const AuditOptions& options, Audited* audited) {
  if (IsAddress(options.run) && options.steps.empty() && options.sample == 0) {
    audited->weights.left_out = {
        "weights: they are fetched only for --step or --sample"};
    return;
  }
  audited->weights = CompareSavedWeights(audited->folder, audited->receipts);
}

// What doesn't hold.
absl::Status Verdict(const Audited& audited) {
  if (audited.difference.has_value()) {
    return WithCode(absl::DataLossError(DifferenceText(*audited.difference,
                                                       audited.deterministic)),
                    "receipts/differs");
  }
  if (!audited.cut_off.empty()) {
    return WithCode(absl::DataLossError(audited.cut_off), "receipts/chain");
  }
  CAPSTAN_RETURN_IF_ERROR(audited.weights.error);
  if (audited.config.empty()) return absl::OkStatus();
  return WithCode(
      absl::DataLossError(absl::StrCat(
          audited.folder, "/config.pbtxt has ", audited.config,
          ": it isn't the config of the receipts; put the run's in its place")),
      "receipts/differs");
}

void Print(const Audited& audited) {
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
    const bool one = audited.gaps.find_first_of(" ,") == std::string::npos;
    rows.emplace_back("missing",
                      absl::StrCat(one ? "step " : "steps ", audited.gaps));
  }
  const std::vector<int64_t>& halves = audited.receipts.half_lines;
  if (!halves.empty()) {
    rows.emplace_back(
        "unfinished",
        absl::StrCat(halves.size() == 1 ? "line " : "lines ",
                     absl::StrJoin(halves, ", "),
                     ": passed over, as a process died while it wrote that"));
  }
  if (!audited.signature.empty()) {
    rows.emplace_back("signature", audited.signature);
  }
  if (audited.seed.has_value()) {
    rows.emplace_back("drawn by", absl::StrCat("--seed=", *audited.seed));
  }
  if (!audited.again.empty() && !audited.difference.has_value()) {
    rows.emplace_back("run again",
                      absl::StrCat(absl::StrJoin(audited.again, ", "),
                                   ": the same to the bit"));
  }
  if (!audited.libraries.empty()) {
    rows.emplace_back(
        "libraries", absl::StrCat("of ", absl::StrJoin(audited.libraries, ", "),
                                  ": others than the run's, by their SHA-256"));
  }
  if (!audited.weights.same.empty()) {
    rows.emplace_back("weights",
                      absl::StrCat(absl::StrJoin(audited.weights.same, ", "),
                                   ": those of the receipts"));
  }
  if (!audited.weights.left_out.empty()) {
    rows.emplace_back("not compared",
                      absl::StrJoin(audited.weights.left_out, "; "));
  }
  const Console console(STDOUT_FILENO);
  console.Write(PrintableText(TableText(rows)));
}

std::string AsJson(const Audited& audited, const absl::Status& verdict) {
  Json json = {{"run", audited.folder},
               {"steps", audited.steps.size()},
               {"first_step", nullptr},
               {"last_step", nullptr},
               {"begun", audited.begun},
               {"missing", audited.gaps},
               {"half_lines", audited.receipts.half_lines},
               {"deterministic", audited.deterministic},
               {"chain", audited.receipts.chain.chain()},
               {"seal", audited.receipts.chain.seal()},
               {"signature", nullptr},
               {"seed", nullptr},
               {"again", audited.again},
               {"other_libraries", audited.libraries},
               {"weights", audited.weights.same},
               {"not_compared", audited.weights.left_out},
               {"difference", nullptr},
               {"error", nullptr}};
  if (!audited.steps.empty()) {
    json["first_step"] = *audited.steps.begin();
    json["last_step"] = *audited.steps.rbegin();
  }
  if (!audited.signature.empty()) json["signature"] = audited.signature;
  if (audited.seed.has_value()) json["seed"] = *audited.seed;
  if (!verdict.ok()) json["error"] = std::string(verdict.message());
  if (audited.difference.has_value()) {
    const ReceiptDifference& difference = *audited.difference;
    json["difference"] = {{"step", difference.step},
                          {"key", difference.key},
                          {"recorded", difference.recorded},
                          {"again", difference.again}};
  }
  return JsonText(json, 1) + "\n";
}

// Of a flag's value, which a parser would cut off at the largest number.
std::string NotANumber(const std::string& value) {
  int64_t number = 0;
  return absl::SimpleAtoi(value, &number)
             ? std::string()
             : absl::StrCat("must be a whole number up to ",
                            std::numeric_limits<int64_t>::max(), ", is ",
                            value);
}

void AddFlags(Flags& flags, AuditOptions* options) {
  flags.Add("run", &options->run, "A run's folder (runs/NAME/latest)")
      .Type("RUN")
      .Required();
  flags
      .Add("--step", &options->steps,
           "Run these steps again, each from the checkpoint before it, and "
           "compare them with their receipts")
      .Delimiter(',')
      .Check(NotANumber);
  flags
      .Add("--sample", &options->sample,
           "The same of so many steps, drawn at random")
      .Positive()
      .Check(NotANumber);
  flags
      .Add("--seed", &options->seed,
           "Which --sample draws; default: others each time")
      .Check(NotANumber);
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
  if (!options.sign.empty()) {
    CAPSTAN_RETURN_IF_ERROR(CheckMaySign(options.sign, SignaturePath(audited)));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::set<int64_t> steps,
                           StepsToRun(options, &audited));
  const absl::StatusOr<int> signal = RunAgain(options, steps, &audited);
  if (signal.ok() && *signal != 0) return 128 + *signal;
  // Nothing to tell of the receipts.
  if (FieldOf(signal.status()).has_value()) return signal.status();
  CompareWeights(options, &audited);
  const absl::Status verdict = signal.ok() ? Verdict(audited) : signal.status();
  // What doesn't hold isn't signed.
  if (!options.sign.empty() && verdict.ok()) {
    CAPSTAN_RETURN_IF_ERROR(SignNow(options.sign, &audited));
  }
  if (options.json) {
    std::cout << AsJson(audited, verdict) << std::flush;
    return verdict.ok() ? 0 : 1;
  }
  Print(audited);
  CAPSTAN_RETURN_IF_ERROR(verdict);
  return 0;
}

const RegisterFunction<AuditOptions> audit("audit", AddFlags, Audit);

}  // namespace
}  // namespace capstan
