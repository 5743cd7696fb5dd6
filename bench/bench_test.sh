#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of bench/, by the python3 of the machine: it needs nothing but that
# and the trainer, for tiny runs.
set -eu
cd "$(dirname "$0")"
export CAPSTAN_BENCH_TRAINER="$PWD/../trainer/trainer"
exec python3 -m unittest bench_test collect_test hosts_bench_test
