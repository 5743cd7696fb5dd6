#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Four ranks of the example meet, and sum 1 + 2 + 3 + 4.
set -u
# The ranks of a test's own launcher would be told apart by these.
unset RANK WORLD_SIZE LOCAL_RANK
output=$(timeout 60 "$1" 2>&1)
status=$?
if [ "$status" -ne 0 ] || [ "$output" != "4 ranks: 10" ]; then
  echo "exit $status: $output"
  exit 1
fi
