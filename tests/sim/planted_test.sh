#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Puts each defect of defects.bzl back and says how many schedules it takes to
# find it; fails if one isn't found in MOST.
set -u
# Which one it is changes with any code that allocates: 1,000 on average may be 5,000.
MOST=${MOST:-20000}
folder=$(dirname "$0")
missed=0
for library in "$folder"/libplanted_*.so; do
  name=${library##*/libplanted_}
  # Counts from 1 on, one after another.
  found=$(LD_PRELOAD=$library "$folder/sim" "$MOST" --jobs=2 --until_found)
  echo "${name%.so}: $found"
  [[ $found == *violat* ]] || missed=$((missed + 1))
done
if ((missed > 0)); then
  echo "$missed defects weren't found"
  exit 1
fi
