// SPDX-License-Identifier: Apache-2.0
//
// Runs and compares the strategy suite's scenarios; the tests are in
// strategy_suite.cc.
#include "tests/conformance/strategy.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <set>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/conformance/difference.h"
#include "tests/conformance/toy_model.h"

namespace capstan {
namespace conformance {
namespace {

// Seconds of silence after which ranks count as stuck. A scenario takes well
// under one second; the machine may be busy.
double Silence() {
  const char* set = std::getenv("CAPSTAN_CONFORMANCE_SILENCE");
  double seconds = 0.0;
  return set != nullptr && absl::SimpleAtod(set, &seconds) ? seconds : 20.0;
}

// What has run so far, by plugin and world size, and what it says of itself.
struct Launches {
  absl::StatusOr<LoadedPluginUnderTest> plugin =
      absl::InternalError("not loaded");
  absl::optional<OwnCurve> own_curve;
  bool local_steps = false;
  std::map<int, Launch> training;
  std::map<int, Launch> resuming;
  std::map<int, Launch> failing;
};

Launches& LaunchesOf(const PluginUnderTest& plugin) {
  static auto& all = *new std::map<std::string, Launches>;
  return all[absl::StrCat(plugin.library, "\n", plugin.config)];
}

const std::vector<std::vector<double>>& ValuesOf(const RankResult& rank,
                                                 const std::string& key) {
  static const auto& none = *new std::vector<std::vector<double>>;
  const auto it = rank.values.find(key);
  return it == rank.values.end() ? none : it->second;
}

// `name`'s elements as owned by the ranks, and the number of owners of each.
void Collect(const WorldResult& world, const std::string& key,
             std::vector<double>* values, std::vector<int>* owners) {
  for (const RankResult& rank : world.ranks) {
    for (const std::vector<double>& record : ValuesOf(rank, key)) {
      const size_t begin = static_cast<size_t>(record[0]);
      for (size_t i = 1; i < record.size(); ++i) {
        (*values)[begin + i - 1] = record[i];
        ++(*owners)[begin + i - 1];
      }
    }
  }
}

}  // namespace

const Scenario* Find(const Launch& launch, const std::string& name) {
  for (const Scenario& scenario : launch.scenarios) {
    if (scenario.name == name) return &scenario;
  }
  return nullptr;
}

void StrategyConformance::SetUp() {
  Launches& launches = LaunchesOf(GetParam());
  if (!launches.plugin.ok()) {
    launches.plugin =
        LoadedPluginUnderTest::Load(GetParam(), PluginCategory::kStrategy);
    const auto strategy = launches.plugin.ok()
                              ? launches.plugin->Create<Strategy>()
                              : launches.plugin.status();
    if (strategy.ok()) {
      launches.own_curve = (*strategy)->own_curve();
      launches.local_steps = (*strategy)->local_steps();
    }
  }
  ASSERT_TRUE(launches.plugin.ok()) << launches.plugin.status().message();
  plugin_ = &*launches.plugin;
}

Launch StrategyConformance::Start(int world, std::vector<Scenario> scenarios,
                                  const std::string& folder) {
  Launch launch;
  launch.folder = folder;
  for (Scenario& scenario : scenarios) {
    const absl::Status status =
        ToyTrainer::Check(plugin(), scenario.run, world);
    if (status.ok()) {
      launch.scenarios.push_back(std::move(scenario));
    } else {
      launch.refused[scenario.name] =
          absl::StrCat(world, " ranks: ", status.message());
    }
  }
  if (launch.scenarios.empty()) return launch;
  launch.result =
      RunRanks(world, Silence(), [&](ProcessGroup* group, RankReport* report) {
        return RunScenarios(plugin(), launch.scenarios, group, report);
      });
  return launch;
}

const Launch& StrategyConformance::Training(int world) {
  std::map<int, Launch>& launches = LaunchesOf(GetParam()).training;
  if (launches.find(world) == launches.end()) {
    const std::string folder = NewConformanceFolder();
    launches[world] = Start(world, TrainingScenarios(world, folder), folder);
  }
  return launches[world];
}

const Launch& StrategyConformance::Resuming(int world) {
  std::map<int, Launch>& launches = LaunchesOf(GetParam()).resuming;
  if (launches.find(world) == launches.end()) {
    std::vector<std::string> folders(kMaxWorld + 1);
    for (int from = 1; from <= kMaxWorld; ++from) {
      const Launch& training = Training(from);
      if (Find(training, "accumulated") != nullptr &&
          !NewestCheckpoint(training.folder).empty()) {
        folders[from] = training.folder;
      }
    }
    launches[world] = Start(world, ResumeScenarios(world, folders), "");
  }
  return launches[world];
}

const Launch& StrategyConformance::Failing(int world) {
  std::map<int, Launch>& launches = LaunchesOf(GetParam()).failing;
  if (launches.find(world) == launches.end()) {
    launches[world] = Start(world, FaultScenarios(world), "");
  }
  return launches[world];
}

void StrategyConformance::ForEach(const std::string& name, const Visit& visit) {
  std::string refusals;
  bool any = false;
  for (int world = 1; world <= kMaxWorld; ++world) {
    const Launch& launch = Training(world);
    const auto refused = launch.refused.find(name);
    if (refused != launch.refused.end()) {
      absl::StrAppend(&refusals, refused->second, "\n");
    }
    const Scenario* scenario = Find(launch, name);
    if (scenario == nullptr) continue;
    any = true;
    SCOPED_TRACE(absl::StrCat(world, " ranks, scenario ", name));
    ExpectFinished(*scenario, launch);
    if (!HasFatalFailure()) visit(world, *scenario, launch);
  }
  if (!any) GTEST_SKIP() << "refused by the strategy:\n" << refusals;
}

void StrategyConformance::ExpectFinished(const Scenario& scenario,
                                         const Launch& launch) {
  for (const RankResult& rank : launch.result.ranks) {
    ASSERT_NE(rank.values.count(scenario.name + "/end"), 0)
        << "did not come to its end: " << launch.result.failure;
  }
}

const Curve& StrategyConformance::ReferenceOf(int world,
                                              const Scenario& scenario) {
  ReferenceOptions options;
  options.precision = scenario.run.precision;
  options.micro_batches = world * scenario.run.accumulation;
  options.steps = scenario.steps;
  options.matrices = scenario.run.matrices;
  if (scenario.kind == Scenario::kBroken) options.broken_step = kBrokenStep;
  return ReferenceCurve(options);
}

const absl::optional<OwnCurve>& StrategyConformance::own_curve() const {
  return LaunchesOf(GetParam()).own_curve;
}

bool StrategyConformance::local_steps() const {
  return LaunchesOf(GetParam()).local_steps;
}

void StrategyConformance::ExpectNoProblems(const std::string& topic) {
  for (int world = 1; world <= kMaxWorld; ++world) {
    const WorldResult& result = Training(world).result;
    for (size_t rank = 0; rank < result.ranks.size(); ++rank) {
      const auto [begin, end] = result.ranks[rank].problems.equal_range(topic);
      std::set<std::string> once;
      for (auto it = begin; it != end; ++it) once.insert(it->second);
      for (const std::string& problem : once) {
        ADD_FAILURE() << "rank " << rank << " of " << world << ": " << problem;
      }
    }
  }
}

void StrategyConformance::ExpectCurve(int world, const Scenario& scenario,
                                      const Launch& launch,
                                      CurveBounds bounds) {
  const absl::optional<OwnCurve> own = own_curve();
  if (own.has_value()) bounds.loss = own->loss;
  const Curve& want = ReferenceOf(world, scenario);
  ASSERT_EQ(want.failure, "");
  const int first = scenario.kind == Scenario::kResume ? kSavedStep : 0;
  for (size_t rank = 0; rank < launch.result.ranks.size(); ++rank) {
    SCOPED_TRACE(absl::StrCat("rank ", rank));
    const auto& steps =
        ValuesOf(launch.result.ranks[rank], scenario.name + "/step");
    ASSERT_EQ(static_cast<int>(steps.size()), scenario.steps - first);
    for (size_t i = 0; i < steps.size(); ++i) {
      const size_t step = first + i;
      EXPECT_EQ(steps[i][2], want.applied[step])
          << "step " << step << ", norm " << steps[i][1];
      EXPECT_LE(RelativeDifference(steps[i][0], want.losses[step]),
                step == 0 ? bounds.first : bounds.loss)
          << "loss of step " << step << ": " << steps[i][0] << ", not "
          << want.losses[step];
      if (want.applied[step] == 0.0) {
        EXPECT_FALSE(std::isfinite(steps[i][1]))
            << "the norm of step " << step << " hides what isn't finite";
        continue;
      }
      if (own.has_value()) continue;
      EXPECT_LE(RelativeDifference(steps[i][1], want.norms[step]),
                step == 0 ? bounds.first : bounds.norm)
          << "gradient norm of step " << step << ": " << steps[i][1] << ", not "
          << want.norms[step];
    }
  }
}

void StrategyConformance::ExpectResumedToTheBit(const std::string& name) {
  const std::string prefix = name == "accumulated" ? "" : name + "_";
  for (int world = 1; world <= kMaxWorld; ++world) {
    const std::string resumed = absl::StrCat(prefix, "from_", world);
    const Launch& launch = Resuming(world);
    const Scenario* scenario = Find(launch, resumed);
    if (scenario == nullptr) continue;
    SCOPED_TRACE(absl::StrCat(world, " ranks, scenario ", resumed));
    ASSERT_NO_FATAL_FAILURE(ExpectFinished(*scenario, launch));
    for (int rank = 0; rank < world; ++rank) {
      const auto& want =
          ValuesOf(Training(world).result.ranks[rank], name + "/step");
      const auto& got = ValuesOf(launch.result.ranks[rank], resumed + "/step");
      ASSERT_EQ(want.size(), got.size() + kSavedStep);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], want[i + kSavedStep])
            << "loss, norm and whether it was applied, of rank " << rank
            << "'s step " << i + kSavedStep
            << ", are not those of the run that was not interrupted";
      }
    }
  }
}

void StrategyConformance::ExpectValues(int world, const Scenario& scenario,
                                       const Launch& launch,
                                       const CurveBounds& bounds,
                                       const std::vector<int>& parameters) {
  const Curve& want = ReferenceOf(world, scenario);
  ASSERT_EQ(want.failure, "");
  const ToyModel model;
  const bool compares = !own_curve().has_value();
  for (int parameter : parameters) {
    if (!model.parameters()[parameter].trainable) continue;
    for (const char* what : {"value", "momentum"}) {
      SCOPED_TRACE(
          absl::StrCat(what, " of ", model.parameters()[parameter].name));
      const std::vector<double>& wanted =
          what[0] == 'v' ? want.values[parameter] : want.momenta[parameter];
      std::vector<double> got(wanted.size(), 0.0);
      std::vector<int> owners(wanted.size(), 0);
      Collect(launch.result,
              absl::StrCat(scenario.name, "/", what, "/", parameter), &got,
              &owners);
      Worst worst;
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(owners[i], 1) << "ranks own element " << i;
        if (compares) worst.Add(std::fabs(got[i] - wanted[i]));
      }
      EXPECT_LE(worst.value(), bounds.value);
    }
  }
}

}  // namespace conformance
}  // namespace capstan
