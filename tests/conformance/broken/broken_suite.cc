// SPDX-License-Identifier: Apache-2.0
//
// The suites on plugins with bugs; broken_test runs it and expects failures.
#include <cstdlib>
#include <string>

#include "tests/conformance/broken/lamp.h"
#include "tests/conformance/collector.h"
#include "tests/conformance/command.h"
#include "tests/conformance/dataset_reader.h"
#include "tests/conformance/model.h"
#include "tests/conformance/objective.h"
#include "tests/conformance/optimizer.h"
#include "tests/conformance/part.h"
#include "tests/conformance/precision.h"
#include "tests/conformance/strategy.h"

#define FOLDER "tests/conformance/broken/libacme_"

#define STRATEGY(bug)                                                  \
  CAPSTAN_STRATEGY_CONFORMANCE(bug, FOLDER "broken_strategy.so",       \
                               "[plugin/acme.broken_strategy.Config] " \
                               "{ bug: " #bug " }")
#define OPTIMIZER(bug)                                                   \
  CAPSTAN_OPTIMIZER_CONFORMANCE(bug, FOLDER "broken_optimizer.so",       \
                                "[plugin/acme.broken_optimizer.Config] " \
                                "{ bug: " #bug " }")
#define PRECISION(bug)                                                   \
  CAPSTAN_PRECISION_CONFORMANCE(bug, FOLDER "broken_precision.so",       \
                                "[plugin/acme.broken_precision.Config] " \
                                "{ bug: " #bug " }")
#define READER(bug)                                                        \
  CAPSTAN_DATASET_READER_CONFORMANCE(bug, FOLDER "broken_reader.so",       \
                                     "[plugin/acme.broken_reader.Config] " \
                                     "{ bug: " #bug " }")
#define MODEL(bug)                                               \
  CAPSTAN_MODEL_CONFORMANCE(bug, FOLDER "broken_model.so",       \
                            "[plugin/acme.broken_model.Config] " \
                            "{ bug: " #bug " }")
#define OBJECTIVE(bug)                                                   \
  CAPSTAN_OBJECTIVE_CONFORMANCE(bug, FOLDER "broken_objective.so",       \
                                "[plugin/acme.broken_objective.Config] " \
                                "{ bug: " #bug " }")
#define COLLECTOR(bug)                                                   \
  CAPSTAN_COLLECTOR_CONFORMANCE(bug, FOLDER "broken_collector.so",       \
                                "[plugin/acme.broken_collector.Config] " \
                                "{ bug: " #bug                           \
                                " output: \"$OUTPUT\" lines: 100 }")
#define COMMAND(bug) \
  CAPSTAN_COMMAND_CONFORMANCE(bug, FOLDER "command_broken.so", "--count=2")
#define PART(bug)                                                          \
  CAPSTAN_PART_CONFORMANCE(bug, acme::Lamp, FOLDER "broken_part.so",       \
                           "[plugin/acme.broken_part.Config] { bug: " #bug \
                           " watts: 60 }")
#define LOCAL(bug)                                                   \
  CAPSTAN_STRATEGY_CONFORMANCE(Local##bug, FOLDER "broken_local.so", \
                               "[plugin/acme.broken_local.Config] "  \
                               "{ bug: " #bug " }")

STRATEGY(NONE);
STRATEGY(HALF_REDUCED);
STRATEGY(MEAN);
STRATEGY(LAST_MICRO_STEP);
STRATEGY(STALE_GRADIENTS);
STRATEGY(ZERO_BY_MULTIPLYING);
STRATEGY(NARROW_SUMS);
STRATEGY(NAN_HIDDEN);
STRATEGY(WHOLE_SQUARED_SUM);
STRATEGY(FROZEN_FORGOTTEN);
STRATEGY(FROZEN_TOUCHED);
STRATEGY(ALL_OWNED);
STRATEGY(DIRTY_PADDING);
STRATEGY(BACKWARDS);
STRATEGY(LATE_PUBLISH);
STRATEGY(EVALUATION_DISTURBS);
STRATEGY(GIVES_UP);
STRATEGY(HANGS);
STRATEGY(WRONG_PLAN);
STRATEGY(MAKES_NAN);
STRATEGY(FORGETS_STATE);
STRATEGY(DETERMINISTIC_LAST);
STRATEGY(ONLY_UPDATES_PUBLISH);

OPTIMIZER(NONE);
OPTIMIZER(LOCAL_NORM);
OPTIMIZER(TOUCHES_PADDING);
OPTIMIZER(UNSCALED);
OPTIMIZER(STALE_WORKING_COPY);
OPTIMIZER(HIDDEN_STATE);
OPTIMIZER(UPHILL);
OPTIMIZER(OWN_RATE);
OPTIMIZER(NO_DEVICE_SCALE);
OPTIMIZER(MAKES_NAN);

PRECISION(NONE);
PRECISION(NARROW_MASTERS);
PRECISION(UNSCALED);
PRECISION(SCALE_OF_1000);
PRECISION(BELOW_MINIMUM);
PRECISION(CHANGING);

READER(NONE);
READER(SORTED);
READER(RANDOM);
READER(SHARED_BUFFER);
READER(UNCHECKED);
READER(CRASHES);
READER(OVERLAPPING);
READER(SHORT_TENSOR);
READER(GROWS);
READER(STRANGE_TOKEN);
READER(KEEPS_TENSORS);

MODEL(NONE);
MODEL(ONE_NAME);
MODEL(WRONG_UNIT);
MODEL(COPIES_AT_BIND);
MODEL(OUTSIDE_UNITS);
MODEL(BY_PIECES);
MODEL(NO_GRADIENT);
MODEL(COUNTS_RUNS);
MODEL(UNWEIGHTED);
MODEL(ONLY_MINUS_100);
MODEL(LOOKS_AHEAD);
MODEL(MIXES_ROWS);
MODEL(IGNORES_POSITIONS);
MODEL(FORGETS);
MODEL(NO_CONFIG);
MODEL(HALF_A_PLAN);
MODEL(WIDE_LOGITS);
MODEL(FORGETS_STATE);
MODEL(CREDULOUS);

OBJECTIVE(NONE);
OBJECTIVE(MEAN);
OBJECTIVE(MISCOUNTS);
OBJECTIVE(IGNORES_LABELS);
OBJECTIVE(ONLY_MINUS_100);
OBJECTIVE(WIDE_LOSS);
OBJECTIVE(RANDOM);
OBJECTIVE(READS_PADDING);
OBJECTIVE(SURPRISE_METRIC);
OBJECTIVE(OWN_RUNNER);
OBJECTIVE(DEAF);
OBJECTIVE(CONSTANT);
OBJECTIVE(FORGETS);
OBJECTIVE(CREDULOUS);
OBJECTIVE(DROPS_ROWS);
OBJECTIVE(OWN_DICE);
OBJECTIVE(LEAVES_EARLY);
OBJECTIVE(NO_REASON);

COLLECTOR(NONE);
COLLECTOR(WORKS_AT_ONCE);
COLLECTOR(MOVES_OUTPUT);
COLLECTOR(LEAVES_A_LOG);
COLLECTOR(RANDOM);
COLLECTOR(APPENDS);
COLLECTOR(IN_PLACE);
COLLECTOR(PERCENT);
COLLECTOR(OTHER_THREAD);
COLLECTOR(CHATTY);
COLLECTOR(SILENT);
COLLECTOR(NEVER_STOPS);
COLLECTOR(LEAVES_HALF);
COLLECTOR(DROPS_THE_OLDER);
COLLECTOR(IGNORES_ERRORS);
COLLECTOR(REFUSES_ITS_OWN);
COLLECTOR(NO_FIELD);

COMMAND(NONE);
COMMAND(ADDS_ONCE);
COMMAND(SHARED_FLAGS);
COMMAND(CHATTERS);
COMMAND(EXITS);
COMMAND(CRASHES);
COMMAND(LONG_ERROR);
COMMAND(STRANGE_FLAG);

PART(NONE);
PART(OTHER_INTERFACE);
PART(NO_FIELD);
PART(STRANGE_FIELD);
PART(CRASHES);
PART(NULL_POINTER);

LOCAL(NONE);
LOCAL(REPLICA_FORGOTTEN);
LOCAL(SHARED_NOT_RESTORED);
LOCAL(USE_WITHOUT_EFFECT);
LOCAL(STAYS_SHARED);
LOCAL(NEVER_SYNCHRONISES);
LOCAL(STALE_WORKING_COPY);
LOCAL(EXPORTS_NOTHING_NEW);
LOCAL(EXPORTS_TWICE);
LOCAL(EXPORTS_A_REPLICA);
LOCAL(RANKS_DRIFT);
LOCAL(SUMS_GRADIENTS);

// A command knows its bug by the test's name, "EXITS/CommandConformance".
class BugInEnvironment final : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    const std::string suite = test.test_suite_name();
    setenv("ACME_BROKEN_COMMAND", suite.substr(0, suite.find('/')).c_str(), 1);
  }
};

const bool listens = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new BugInEnvironment);
  return true;
}();
