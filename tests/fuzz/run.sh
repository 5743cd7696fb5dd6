#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Fuzz targets with libFuzzer, AddressSanitizer and UBSan, by clang-14:
#   tests/fuzz/run.sh MINUTES [TARGET..]
# MINUTES for each, or, as 10s, seconds, after which the corpus stays as it was;
# without targets all, as many at a time as there are cores.
# TARGET is a label, //tests/fuzz:json_fuzz. What adds to the coverage is kept in
# the target's corpus, to be committed; inputs that fail are kept in
# /tmp/capstan_fuzz and named, and the exit status is 1.
set -euo pipefail
cd "$(dirname "$0")/../.."

if [ $# -lt 1 ] || ! [[ $1 =~ ^[0-9]+s?$ ]]; then
  echo "usage: tests/fuzz/run.sh MINUTES [TARGET..]" >&2
  exit 2
fi
command -v clang++-14 >/dev/null || command -v clang++ >/dev/null || {
  echo "tests/fuzz/run.sh needs clang: apt-get install clang-14" >&2
  exit 2
}
case "$1" in
*s) seconds=${1%s} merge=0 ;;
*) seconds=$(($1 * 60)) merge=1 ;;
esac
shift
bazel=${BAZEL:-./bazelw}
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  mapfile -t targets < <($bazel query 'attr(tags, "\bfuzz\b", //...)')
fi

$bazel build --config=fuzz "${targets[@]}"
binaries=$($bazel info --config=fuzz bazel-bin)
export seconds merge binaries
export out=/tmp/capstan_fuzz
# What LibTorch allocates and frees isn't seen by the sanitizer.
export ASAN_OPTIONS=detect_leaks=0:detect_container_overflow=0:alloc_dealloc_mismatch=0
export UBSAN_OPTIONS=print_stacktrace=1
export OMP_NUM_THREADS=1
# Files that targets write are in memory.
export TMPDIR=/dev/shm

fuzz() {  # label
  local label=${1#//} folder name corpus work limits
  folder=${label%:*}
  name=${label#*:}
  corpus=$folder/corpus/$name
  work=$out/$name
  rm -rf "$work/new"
  mkdir -p "$work/new" "$corpus"
  limits=(-timeout=10 -rss_limit_mb=2560 -malloc_limit_mb=1024 -max_len=4096)
  # The limit is kept by a thread, whose locks a child of fork() would inherit.
  [ "$name" != history_fuzz ] || limits+=(-rss_limit_mb=0)
  if ! nice -n 10 "$binaries/$folder/$name" "${limits[@]}" \
    -max_total_time="$seconds" -print_final_stats=1 \
    -artifact_prefix="$work/" "$work/new" "$corpus" >"$work/log" 2>&1; then
    echo "FAILED //$label: see $work/log"
    grep -a -m1 'Test unit written to' "$work/log" || tail -n 5 "$work/log"
    return 1
  fi
  [ "$merge" = 0 ] ||
    nice -n 10 "$binaries/$folder/$name" "${limits[@]}" -merge=1 \
      "$corpus" "$work/new" >"$work/merge_log" 2>&1
  echo "//$label: $(sed -n 's/^stat::number_of_executed_units: *//p' \
    "$work/log") runs, $(find "$corpus" -type f | wc -l) files in its corpus"
}
export -f fuzz
printf '%s\n' "${targets[@]}" |
  xargs -P "$(nproc)" -I{} bash -c 'fuzz {}'
