#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of bench/, by the python3 of the machine: it needs nothing but that.
set -eu
cd "$(dirname "$0")"
exec python3 -m unittest bench_test collect_test hosts_bench_test
