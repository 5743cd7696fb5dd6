#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# gate.py with the program $1, on the stand-in devices among the runfiles.
set -euo pipefail
export CAPSTAN_STANDIN_RUN=$PWD/testing/standin/run.sh
export CAPSTAN_STANDIN_LIBRARIES=$PWD/testing/standin/lib
exec python3 bench/roofline/gate.py "$1"
