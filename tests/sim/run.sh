#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Plays SCHEDULES schedules, and tells the story of the first that violates an
# invariant:
#   tests/sim/run.sh [SCHEDULES] [--ranks=N] [--first=SEED] [--jobs=N]
# or that of one seed:
#   tests/sim/run.sh --seed=SEED [--ranks=N] [--whole]
set -eu
cd "$(dirname "$0")/../.."
./bazelw build --compilation_mode=opt //tests/sim
exec bazel-bin/tests/sim/sim "$@"
