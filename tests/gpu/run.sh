#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The first hour on a GPU, unattended, in at most 55 minutes:
#
#     ./bazelw build //... //tests/gpu:compute-sanitizer
#     tests/gpu/run.sh [FOLDER]
#
# FOLDER (default gpu_report) gets report.md, report.json, the parts' output, and
# all of it but weights in bundle.tar.gz.
# Each part has a time limit, and one that fails doesn't stop the others. It has
# passed, failed, or is "not judged", if what it saw is for a reader, or it
# couldn't run; then its last line says why. PARTS="kernels batches" runs only these. TRAINER is
# the trainer's path, by default bazel-bin/trainer/trainer; BUILD its tree, by
# default bazel-bin. GPUS is how many GPUs to use, by default those of the
# driver: 0 ends with "skipped". On stand-in devices (testing/standin) only the
# scripts are tried: STEPS=3 CONFIG=bench/roofline/small.pbtxt TRAINER=.. GPUS=2
set -uo pipefail
cd "$(dirname "$0")/../.."
folder=${1:-gpu_report}
build=${BUILD:-bazel-bin}
export TRAINER=${TRAINER:-$build/trainer/trainer}
export BUILD=$build

count_gpus() {
  local gpus listed
  gpus=$({ ls /proc/driver/nvidia/gpus 2>/dev/null || true; } | wc -l)
  # Containers and WSL2 lack that folder.
  if [ "$gpus" -eq 0 ] && command -v nvidia-smi >/dev/null; then
    gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
  fi
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ]; then
    listed=$(tr , '\n' <<<"$CUDA_VISIBLE_DEVICES" |
      grep -cv '^ *\(-.*\)\?$' || true)
    if [ "$listed" -lt "$gpus" ]; then gpus=$listed; fi
  fi
  echo "$gpus"
}
export GPUS=${GPUS:-$(count_gpus)}
for setting in "GPUS=$GPUS" "MINUTES=${MINUTES:-55}"; do
  if ! [[ "${setting#*=}" =~ ^(0|[1-9][0-9]*)$ ]]; then
    echo "${setting%%=*}: \"${setting#*=}\" isn't a whole number" >&2
    exit 1
  fi
done
if [ "$GPUS" -eq 0 ]; then
  echo "no GPU: skipped"
  exit 0
fi
if [ ! -x "$TRAINER" ] || [ -d "$TRAINER" ]; then
  echo "no trainer at $TRAINER: run ./bazelw build //... first" >&2
  exit 1
fi
if [ -e "$folder/parts.tsv" ] || [ -e "$folder/runs" ]; then
  echo "$folder holds another report or runs: name a new folder" >&2
  exit 1
fi
mkdir -p "$folder" && folder=$(cd "$folder" && pwd) || exit 1
export FOLDER=$folder
: >"$folder/parts.tsv"

# Name and seconds; tests/gpu/part_NAME.sh is the part.
all_parts="machine:30 correctness:540 workloads:420 benchmarks:600 kernels:120 nccl:180 step:240 \
batches:240 strategies:300 graphs:240 memory:150 peers:300 sanitizer:420"
if [ -n "${PARTS-}" ] && [ -z "${PARTS// /}" ]; then
  echo "PARTS: names no part" >&2
  exit 1
fi
for name in ${PARTS-}; do
  if [[ " $all_parts" != *" $name:"* ]]; then
    echo "PARTS: there is no part \"$name\"" >&2
    exit 1
  fi
done
failed=0
deadline=$((SECONDS + ${MINUTES:-55} * 60))
for part in $all_parts; do
  name=${part%%:*}
  limit=${part##*:}
  left=$((deadline - SECONDS))
  late="failed: out of time"
  if [ "$limit" -gt "$left" ]; then
    limit=$left
    late="not judged: no time was left"
  fi
  if [ -n "${PARTS-}" ] && [[ " $PARTS " != *" $name "* ]]; then continue; fi
  if [ "$limit" -le 0 ]; then
    printf '%s\tnot judged: no time was left\t0\n' "$name" >>"$folder/parts.tsv"
    continue
  fi
  echo "== $name (at most $limit s)"
  began=$SECONDS
  timeout -k 10 "$limit" bash "tests/gpu/part_$name.sh" \
    >"$folder/$name.txt" 2>&1
  status=$?
  case $status in
    0) state=passed ;;
    77 | 78) state="not judged: $(tail -n 1 "$folder/$name.txt" | tr '\t' ' ')" ;;
    124 | 137) state=$late ;;
    *) state="failed: $(tail -n 1 "$folder/$name.txt" | tr '\t' ' ')" ;;
  esac
  if [[ "$state" == failed* ]]; then failed=$((failed + 1)); fi
  printf '%s\t%s\t%s\n' "$name" "$state" "$((SECONDS - began))" \
    >>"$folder/parts.tsv"
  echo "   $state ($((SECONDS - began)) s)"
done
if ! python3 tests/gpu/report.py "$folder"; then
  echo "the report can't be written; the parts' output is in $folder"
  failed=$((failed + 1))
fi
# All that a reader who wasn't there needs, without checkpoints and weights.
bundle=$(mktemp "$folder.XXXXXX")
if tar -C "$folder" -czf "$bundle" --exclude=bundle.tar.gz \
  --exclude=checkpoints --exclude=final . &&
  mv -T "$bundle" "$folder/bundle.tar.gz"; then
  echo "report: $folder/report.md; all logs: $folder/bundle.tar.gz"
else
  rm -f "$bundle"
  echo "the bundle can't be written: take $folder itself"
  failed=$((failed + 1))
fi
[ "$failed" -eq 0 ]
