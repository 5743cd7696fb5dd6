// SPDX-License-Identifier: Apache-2.0
#include "desk/fit/fitter.h"

#include <c10/core/ScalarType.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/machine.h"
#include "base/status.h"
#include "desk/fit/estimate.h"
#include "desk/fit/measure.h"
#include "desk/fit/places.h"
#include "host/config/load_config.h"
#include "plugins/sdk/model.h"
#include "trainer/commands/prepare.h"
#include "trainer/session/micro_batch.h"
#include "trainer/session/schedule.h"

namespace capstan::fit {
namespace {

// Seconds of steps that a measurement takes.
constexpr double kProbeSeconds = 0.8;
constexpr double kTrialSeconds = 1.2;
constexpr int kMoreTrials = 2;
// Of micro-steps where the accumulation of the run itself would take long.
constexpr int64_t kMostAccumulation = 8;
// A size is measured for each factor of this between the least and the largest.
constexpr int64_t kSizeFactor = 4;

// Asks, measures, predicts.
class Fitter {
 public:
  Fitter(const Question& question, Answer* answer, Prepared* prepared,
         Estimator* estimator, Measurer* measurer)
      : question_(question),
        answer_(*answer),
        prepared_(*prepared),
        estimator_(*estimator),
        measurer_(*measurer) {}

  void Run() {
    Judge();
    Probe();
    probed_ = true;
    Judge();
    if (answer_.machine.here) Try();
    Sort();
  }

 private:
  void Judge() {
    // By all but recomputation: the least work of it that fits.
    std::map<std::string, double> least;
    const auto key = [](const Candidate& one) {
      return absl::StrCat(one.hosts, " ", one.ranks, " ",
                          one.choice.micro_batch, " ", one.Strategy());
    };
    const auto work = [](const Candidate& one) {
      return RecomputeFactor({}, 0, one.Checkpointing());
    };
    for (Candidate& one : answer_.candidates) {
      estimator_.Estimate(&one);
      if (probed_ && one.refused.empty() && one.seconds <= 0.0) {
        one.unknown = true;
        one.refused = WhyUnknown(one);
      }
      if (!one.refused.empty()) continue;
      const auto [at, added] = least.emplace(key(one), work(one));
      if (!added) at->second = std::min(at->second, work(one));
    }
    for (Candidate& one : answer_.candidates) {
      one.needless = one.refused.empty() && work(one) > least[key(one)];
    }
    Sort();
  }

  // Values within one half of a percent are equal.
  static int64_t Steps(double value) {
    return value > 0.0 ? std::llround(std::log(value) / 0.005) : 0;
  }

  double Value(const Candidate& one) const {
    switch (answer_.wish) {
      case Wish::kMemory:
        return static_cast<double>(one.memory);
      case Wish::kCost:
        return one.seconds * one.hosts;
      case Wish::kTime:
        break;
    }
    return one.seconds;
  }

  void Sort() {
    std::stable_sort(
        answer_.candidates.begin(), answer_.candidates.end(),
        [this](const Candidate& a, const Candidate& b) {
          if (a.refused.empty() != b.refused.empty()) {
            return a.refused.empty();
          }
          if (!a.refused.empty()) return a.memory < b.memory;
          if (answer_.wish != Wish::kMemory && a.needless != b.needless) {
            return b.needless;
          }
          const int64_t first = Steps(Value(a));
          const int64_t second = Steps(Value(b));
          if (first != second) return first < second;
          return answer_.wish == Wish::kMemory ? a.seconds < b.seconds
                                               : a.memory < b.memory;
        });
  }

  std::string WhyUnknown(const Candidate& one) const {
    const std::string what =
        absl::StrCat("nothing is known of ", one.ranks,
                     one.ranks == 1 ? " rank" : " ranks", " of a host: ");
    if (!answer_.machine.measured.empty()) {
      return absl::StrCat(what, "`measured` is of others");
    }
    if (one.ranks > AvailableCores()) {
      return absl::StrCat(what, "this machine has ", AvailableCores(),
                          " cores to measure them with; describe what they "
                          "reach (tflops), or fit there and add what "
                          "`fit --json` prints");
    }
    return absl::StrCat(what, "no step of it could be measured here");
  }

  // Whether steps with so many ranks of a host are to be measured, on this
  // machine. What was measured elsewhere isn't added to.
  bool ToProbe(int ranks) const {
    const Machine& machine = answer_.machine;
    return !estimator_.knows_compute(ranks) &&
           (machine.here ||
            (machine.measured.empty() && ranks <= AvailableCores())) &&
           std::any_of(answer_.candidates.begin(), answer_.candidates.end(),
                       [ranks](const Candidate& one) {
                         return one.ranks == ranks && one.refused.empty();
                       });
  }

  // The best of some candidates to measure by, or null: one that fits, without
  // recomputation, and which sends least.
  const Candidate* BestProbe(
      const std::function<bool(const Candidate&)>& is) const {
    const auto order = [](const Candidate& one) {
      return std::make_tuple(!one.refused.empty(),
                             RecomputeFactor({}, 0, one.Checkpointing()),
                             one.traffic.Of(one.accumulation));
    };
    const Candidate* best = nullptr;
    for (const Candidate& one : answer_.candidates) {
      // What wouldn't fit on a described host may be measured on this one.
      if (one.hosts != 1 || !is(one) ||
          (!one.refused.empty() && answer_.machine.here)) {
        continue;
      }
      if (best == nullptr || order(one) < order(*best)) best = &one;
    }
    return best;
  }

  Candidate WithAccumulation(Candidate one, int64_t accumulation) const {
    one.accumulation = accumulation;
    one.choice.global_batch =
        accumulation * one.choice.micro_batch *
        MeshOf(prepared_.job.loaded.config.train(), one.ranks).data;
    return one;
  }

  Candidate Shortened(const Candidate& one) const {
    return answer_.machine.here && one.accumulation <= 2 * kMostAccumulation
               ? one
               : WithAccumulation(
                     one, std::min(one.accumulation, kMostAccumulation));
  }

  // The candidates to measure micro-steps by: some sizes, with the strategy
  // that sends least; the smallest with one micro-step, too, which tells what a
  // step takes whatever its micro-steps; and one that sends unit by unit, which
  // tells what a collective costs.
  void AddProbes(int ranks, std::vector<Candidate>* probes) const {
    std::set<int64_t> sizes;
    for (const Candidate& one : answer_.candidates) {
      if (one.ranks == ranks) sizes.insert(one.choice.micro_batch);
    }
    int64_t last = 0;
    for (auto it = sizes.begin(); it != sizes.end(); ++it) {
      const auto next = std::next(it);
      if (last > 0 && next != sizes.end() && *next <= kSizeFactor * last) {
        continue;
      }
      const auto of_size = [size = *it, ranks](const Candidate& one) {
        return one.ranks == ranks && one.choice.micro_batch == size;
      };
      const Candidate* const best = BestProbe(of_size);
      if (best == nullptr) continue;
      probes->push_back(Shortened(*best));
      if (last == 0) {
        if (probes->back().accumulation > 1) {
          probes->push_back(WithAccumulation(*best, 1));
        }
        const Candidate* const units =
            BestProbe([&of_size](const Candidate& one) {
              return of_size(one) && one.traffic.by_unit;
            });
        if (units != nullptr) probes->push_back(Shortened(*units));
      }
      last = *it;
    }
  }

  absl::StatusOr<Measured> Measure(const Candidate& one, double seconds) {
    CAPSTAN_ASSIGN_OR_RETURN(Measured measured,
                             measurer_.Measure(one, seconds));
    measured.gpu = answer_.machine.gpu;
    return measured;
  }

  void Probe() {
    std::set<int> places;
    for (const Candidate& one : answer_.candidates) places.insert(one.ranks);
    std::vector<Candidate> probes;
    for (const int ranks : places) {
      if (ToProbe(ranks)) AddProbes(ranks, &probes);
    }
    for (const Candidate& probe : probes) {
      const auto measured = Measure(probe, kProbeSeconds);
      if (measured.ok()) {
        estimator_.Add(*measured);
      } else {
        answer_.notes.push_back(absl::StrCat(
            "not measured: ", probe.Strategy(), ", ", probe.ranks,
            probe.ranks == 1 ? " rank" : " ranks", ", micro-batch ",
            probe.choice.micro_batch, ": ", measured.status().message()));
      }
    }
  }

  // Runs one, or notes why it can't be; either way the order may change.
  void TryOne(Candidate* one) {
    const auto measured = Measure(*one, kTrialSeconds);
    if (measured.ok()) {
      estimator_.Add(*measured);
    } else {
      one->refused =
          absl::StrCat("a trial failed: ", measured.status().message());
      estimator_.Refuse(*one);
    }
    Judge();
  }

  // Runs the best until so many have been.
  void Try() {
    for (int i = 0; i < question_.trials + kMoreTrials; ++i) {
      const auto next =
          std::find_if(answer_.candidates.begin(), answer_.candidates.end(),
                       [](const Candidate& one) { return !one.tried; });
      if (next == answer_.candidates.end() || !next->refused.empty()) break;
      // Behind the last, only for one that would else be chosen untried.
      if (i >= question_.trials &&
          (question_.trials == 0 || next != answer_.candidates.begin())) {
        break;
      }
      TryOne(&*next);
    }
    // The nearest once more, since a machine's speed drifts.
    const size_t again = std::min<size_t>(question_.trials > 0 ? 3 : 0,
                                          answer_.candidates.size());
    const std::vector<Candidate> first(
        answer_.candidates.begin(),
        answer_.candidates.begin() + static_cast<std::ptrdiff_t>(again));
    for (const Candidate& one : first) {
      if (!one.refused.empty() || !one.tried) continue;
      const auto measured = Measure(one, kTrialSeconds);
      if (measured.ok()) estimator_.Add(*measured);
    }
    Judge();
    // One that hasn't been run may now be the first. What was kept is an answer
    // that had been asked for before.
    const int more = measurer_.has_measured() ? kMoreTrials : 0;
    for (int i = 0; i < more && question_.trials > 0; ++i) {
      Candidate& best = answer_.candidates.front();
      if (best.tried || !best.refused.empty()) break;
      TryOne(&best);
    }
    answer_.trials = static_cast<int>(
        std::count_if(answer_.candidates.begin(), answer_.candidates.end(),
                      [](const Candidate& one) { return one.tried; }));
  }

  const Question& question_;
  Answer& answer_;
  Prepared& prepared_;
  Estimator& estimator_;
  Measurer& measurer_;
  bool probed_ = false;
};

// Cores that others kept busy beside a measurement.
void NoteDisturbance(double cores, Answer* answer) {
  if (cores < kQuietCores) return;
  answer->notes.push_back(absl::StrFormat(
      "other programs kept %.1f cores busy: what was measured is too slow by "
      "that; fit again when they are done (--again)",
      cores));
}

}  // namespace

double Answer::Total(const Candidate& one) const {
  return one.seconds * static_cast<double>(steps);
}

double Answer::Cost(const Candidate& one) const {
  return Total(one) / 3600.0 * one.hosts * machine.price_per_hour;
}

const Candidate* Answer::best() const {
  return candidates.empty() || !candidates.front().refused.empty()
             ? nullptr
             : &candidates.front();
}

namespace {

// Of rows, the mean.
double TokensOfRow(const TrainJob& job) {
  const std::vector<int64_t> lengths = RowLengths(job);
  return lengths.empty() ? static_cast<double>(LongestRow(job))
                         : ExpectedLongest(lengths, 1);
}

// The values that the reader's `packing` may have, its own first; empty if it
// has none.
std::vector<std::string> Packings(const LoadedConfig& loaded) {
  std::vector<std::string> packings;
  const auto data = Unpack(loaded.config.train_data());
  if (!data.ok()) return packings;
  const auto* const field = SingleField(
      **data, "packing", google::protobuf::FieldDescriptor::TYPE_ENUM);
  if (field == nullptr) return packings;
  const auto* const own = (*data)->GetReflection()->GetEnum(**data, field);
  packings.emplace_back(own->name());
  for (int i = 0; i < field->enum_type()->value_count(); ++i) {
    const auto* const value = field->enum_type()->value(i);
    if (value != own) packings.emplace_back(value->name());
  }
  return packings;
}

PackedEpoch EpochOf(const std::string& packing,
                    const absl::StatusOr<Answer>& answer) {
  PackedEpoch epoch;
  epoch.packing = packing;
  const Candidate* const best = answer.ok() ? answer->best() : nullptr;
  if (best == nullptr) {
    epoch.way =
        answer.ok() ? "nothing fits" : std::string(answer.status().message());
    return epoch;
  }
  epoch.seconds = best->seconds * static_cast<double>(answer->epoch_rows) /
                  static_cast<double>(answer->global_batch);
  epoch.way = absl::StrCat(best->Strategy(), ", micro-batch ",
                           best->choice.micro_batch);
  return epoch;
}

// Asks the same of each other packing.
void AskOfPackings(const Question& question, const LoadedConfig& loaded,
                   Answer* answer) {
  const std::vector<std::string> packings = Packings(loaded);
  if (packings.empty()) {
    answer->notes.push_back("--packing: this run's data can't be packed");
    return;
  }
  answer->packings.push_back(EpochOf(packings[0], *answer));
  for (size_t i = 1; i < packings.size(); ++i) {
    Question other = question;
    other.packing = false;
    other.trials = std::min(other.trials, 2);
    other.run.overrides.push_back(
        absl::StrCat("train_data.packing=", packings[i]));
    answer->packings.push_back(EpochOf(packings[i], Find(other)));
  }
}

// What the time of a step depends on, but the machine.
std::string RunOfSteps(const TrainJob& job) {
  int64_t parameters = 0;
  int64_t trained = 0;
  for (const ParameterSpec& spec : job.parts.model->parameters()) {
    parameters += spec.numel();
    if (spec.trainable) trained += spec.numel();
  }
  const std::string name = PackageOf(TypeOf(job.loaded.config.model()));
  return absl::StrCat(name, " of ", parameters, " parameters, ", trained,
                      " trained, ", job.parts.model->units().size(),
                      " units, rows of ", LongestRow(job), " tokens, ",
                      c10::toString(job.parts.policy().compute));
}

absl::Status CheckMeasured(const Machine& machine, const std::string& run) {
  if (machine.measured_run.empty() || machine.measured_run == run) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(machine.name, ": its measured steps are of another run (",
                   machine.measured_run, "), this one is ", run,
                   ": fit this one there, or leave that file out"));
}

// A run whose curve is its strategy's own has no other ways.
absl::Status CheckCurve(const TrainJob& job) {
  const absl::optional<OwnCurve> own = job.parts.strategy->own_curve();
  if (!own.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "strategy: ", PackageOf(TypeOf(job.loaded.config.strategy())),
      " has a curve of its own (", own->why,
      "), and fit compares ways that have the same: add --set "
      "strategy=capstan.ddp to ask about those of the others"));
}

// An error if no way is left of whose time anything is known.
absl::Status CheckKnown(const Answer& answer) {
  if (answer.best() != nullptr) return absl::OkStatus();
  for (const Candidate& one : answer.candidates) {
    if (!one.unknown) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        answer.machine.name, ": ", one.refused,
        answer.notes.empty() ? "" : absl::StrCat(" (", answer.notes[0], ")")));
  }
  return absl::OkStatus();
}

// Runs of this machine's own ranks, or of a described one.
absl::Status CheckPlace(const Prepared& prepared, const Machine& machine) {
  if (!prepared.place.forks) {
    return absl::FailedPreconditionError(absl::StrCat(
        "fit starts ranks itself, and ", prepared.place.info.placed_by,
        " has started this one: run it alone on one host, and describe the "
        "others with --machine"));
  }
  if (machine.here && prepared.place.info.nodes > 1) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the run is for ", prepared.place.info.nodes,
        " hosts (launch.nodes): describe them with --machine, or add --set "
        "launch.nodes=1"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Answer> Find(const Question& question) {
  Answer answer;
  if (question.run.print_config) {
    CAPSTAN_RETURN_IF_ERROR(Prepare(question.run).status());
    return answer;
  }
  answer.wish = question.wish;
  CAPSTAN_ASSIGN_OR_RETURN(const Launching launching, ReadLaunch(question.run));
  CAPSTAN_ASSIGN_OR_RETURN(answer.machine, MachineOf(question, launching));
  const Machine& machine = answer.machine;
  // What the config makes it on all ranks, where it doesn't say.
  const int64_t global =
      launching.global_batch > 0
          ? launching.global_batch
          : launching.micro_batch *
                MeshOf(launching.train, machine.all_ranks()).data;
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<Prepared> prepared,
                           PrepareFor(question, machine, launching, global));
  CAPSTAN_RETURN_IF_ERROR(CheckPlace(*prepared, machine));
  CAPSTAN_RETURN_IF_ERROR(CheckCurve(prepared->job));
  const std::string run = RunOfSteps(prepared->job);
  CAPSTAN_RETURN_IF_ERROR(CheckMeasured(machine, run));
  const TrainJob& job = prepared->job;
  answer.run = job.loaded.config.name();
  answer.global_batch = global;
  answer.tokens = TokensOfRow(job);
  answer.own_processes = machine.ranks;
  answer.epoch_rows = EpochRows(job.parts);
  answer.steps =
      StepsOfRun(job.loaded.config.train(), answer.epoch_rows, global);
  CAPSTAN_ASSIGN_OR_RETURN(
      Candidates found, FindCandidates(*prepared, PlacesOf(machine, launching),
                                       launching.micro_batch));
  answer.candidates = std::move(found.all);
  answer.left_out = std::move(found.left_out);
  if (answer.candidates.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "no strategy can run this config on ", machine.name,
        answer.left_out.empty() ? ""
                                : absl::StrCat(": ", answer.left_out[0].what,
                                               ": ", answer.left_out[0].why)));
  }
  Estimator estimator(*prepared, machine);
  Measurer measurer(question.run, PrintConfig(job.loaded.config),
                    question.again, question.progress);
  Fitter(question, &answer, prepared.get(), &estimator, &measurer).Run();
  CAPSTAN_RETURN_IF_ERROR(CheckKnown(answer));
  NoteDisturbance(measurer.disturbed(), &answer);
  answer.machine.measured = estimator.measured();
  answer.machine.measured_run = run;
  if (question.packing) AskOfPackings(question, job.loaded, &answer);
  return answer;
}

}  // namespace capstan::fit
