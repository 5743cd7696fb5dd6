#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Each fault of the campaign once, in the ways that today's seed chooses; a line of
# what fails says the seed.
set -euo pipefail
cd "$TEST_SRCDIR/$TEST_WORKSPACE"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 0; }
exec python3 tests/faults/campaign/campaign.py --trainer=trainer/trainer \
  --corpus=tests/testdata/corpus.txt --tokenizer=datasets/samples/tokenizer \
  --times=1 --seed="${CAMPAIGN_SEED:-$(date +%-j)}" \
  --log="${TEST_UNDECLARED_OUTPUTS_DIR:-$TEST_TMPDIR/campaign}"
