#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A short soak, and that the judge of long ones sees what grows.
set -euo pipefail
soak=tests/faults/soak.sh
table=$(mktemp "$TEST_TMPDIR/table.XXXXXX")

# tabulate KIB DESCRIPTORS THREADS FILES: 30 measurements, with what each gains
# from one to the next; every fifth is in the midst of a checkpoint.
tabulate() {
  awk -v a="$1" -v b="$2" -v c="$3" -v d="$4" 'BEGIN {
    for (i = 1; i <= 30; ++i) {
      busy = i % 5 == 0
      print 100 * i, 90000 + a * i + 9000 * busy, 60 + int(b * i) + 7 * busy,
            9 + int(c * i) + busy, 20 + int(d * i) + 3 * busy
    }
  }' >"$table"
}

tabulate 0 0 0 0
$soak --judge "$table"
for grows in "700 0 0 0" "0 0.2 0 0" "0 0 0.2 0" "0 0 0 0.5"; do
  # shellcheck disable=SC2086
  tabulate $grows
  if $soak --judge "$table" >/dev/null; then
    echo "the judge doesn't see that this grows: $grows"
    exit 1
  fi
done

TRAINER=trainer/trainer $soak 24000
