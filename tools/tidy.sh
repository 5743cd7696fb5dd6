#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# clang-tidy, with the checks of .clang-tidy, on FILES:
#   tools/tidy.sh trainer/session/*.cc
# or, without arguments, on the sources that differ from where the branch left
# origin/main, or main (on it: from the last commit), 40 at most: a file that sees
# ATen takes five to twenty seconds. TIDY_SECONDS is how long it may begin files.
# Generated headers are those of the last build.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly most=40

# The commit to compare with, or nothing in a clone that has only one.
base() {
  if [ "$(git rev-parse --is-shallow-repository)" = true ]; then
    GIT_TERMINAL_PROMPT=0 timeout 30 git fetch --quiet --deepen=20 2>/dev/null || true
  fi
  local own fork
  own=$(git rev-parse HEAD)
  fork=$(git merge-base HEAD origin/main 2>/dev/null ||
    git merge-base HEAD main 2>/dev/null || true)
  if [ -z "$fork" ] || [ "$fork" = "$own" ]; then
    fork=$(git rev-parse --quiet --verify HEAD~1 || true)
  fi
  echo "$fork"
}

checkable() {  # reads names; drops what doesn't parse by itself
  local file
  while read -r file; do
    case "$file" in
    # Templates, and what needs NCCL.
    desk/new_plugin/templates/*/*) ;;
    cluster/comm/nccl/* | kernels/cuda/cuda_library.cc) ;;
    *.cc | *.h) [ ! -e "$file" ] || echo "$file" ;;
    esac
  done
}

if [ $# -gt 0 ]; then
  mapfile -t files < <(printf '%s\n' "$@" | checkable)
else
  from=$(base)
  if [ -z "$from" ]; then
    echo "clang-tidy: no earlier commit to compare with"
    exit 0
  fi
  mapfile -t files < <(git diff --name-only "$from" -- | checkable)
  if [ "${#files[@]}" -gt "$most" ]; then
    echo "clang-tidy: $most of ${#files[@]} changed files, chosen by commit"
    mapfile -t files < <(printf '%s\n' "${files[@]}" |
      shuf -n "$most" --random-source=<(yes "$(git rev-parse HEAD)"))
  fi
fi
[ "${#files[@]}" -gt 0 ] || exit 0

generated=bazel-bin
torch=$(dirname "$(readlink -f bazel-out)")/external/libtorch/site/torch
[ -d "$torch" ] || { echo "clang-tidy: build first" >&2; exit 1; }
# -x c++: a header is checked as a file of its own.
flags=(
  -x c++ -std=c++17 -O1 -DNDEBUG -I. "-I$generated"
  -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include"
  -isystem /usr/include/hdf5/serial
  -DUSE_C10D_GLOO -DUSE_DISTRIBUTED -DAT_PER_OPERATOR_HEADERS
  -DSIMD_TARGET_PLAIN
)
looked=$(mktemp)
trap 'rm -f "$looked"' EXIT
export looked
export end=$(($(date +%s) + ${TIDY_SECONDS:-86400}))
check() {  # file flags..
  [ "$(date +%s)" -lt "$end" ] || return 0
  echo "$1" >>"$looked"
  clang-tidy --quiet "$1" -- "${@:2}" 2>/dev/null
}
export -f check
status=0
printf '%s\n' "${files[@]}" |
  xargs -P "$(nproc)" -I {} bash -c 'check "$@"' check {} "${flags[@]}" ||
  status=1
seen=$(wc -l <"$looked")
echo "clang-tidy: looked at $seen files, not at $((${#files[@]} - seen))"
exit "$status"
