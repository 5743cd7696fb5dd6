// SPDX-License-Identifier: Apache-2.0
//
// The suites on plugins with bugs; broken_test runs it and expects failures.
#include "tests/conformance/dataset_reader.h"
#include "tests/conformance/optimizer.h"
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
