#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Each fault of the campaign once; timed.sh does each three times, if time is left.
set -euo pipefail
cd "$TEST_SRCDIR/$TEST_WORKSPACE"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 0; }
exec python3 tests/faults/campaign/campaign.py --trainer=trainer/trainer \
  --corpus=tests/testdata/corpus.txt --tokenizer=datasets/samples/tokenizer \
  --times=1 --seed=1 \
  --log="${TEST_UNDECLARED_OUTPUTS_DIR:-$TEST_TMPDIR/campaign}"
