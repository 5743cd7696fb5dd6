#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The part "workloads" of tests/gpu/run.sh, with the trainer, on a stand-in
# device: so that on a GPU it doesn't fail for a mistake of its own.
set -uo pipefail
export CAPSTAN_STANDIN=gpus=1,memory=8G
export GPUS=1 STEPS=3 NARROW=1 PARTS=workloads TRAINER=$PWD/trainer/trainer
report=$TEST_TMPDIR/report
testing/standin/run.sh bash tests/gpu/run.sh "$report" && exit
tail -n 100 "$report/workloads.txt"
exit 1
