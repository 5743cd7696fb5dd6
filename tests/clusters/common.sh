# SPDX-License-Identifier: Apache-2.0
#
# What the tests of this folder share: one run of 20 steps on four ranks, started by
# our launcher on one host, and the comparison of another launcher's run with it.
# A test that lacks a program says "skipped: no PROGRAM" and passes.
set -euo pipefail

readonly runfiles="$TEST_SRCDIR/$TEST_WORKSPACE"
readonly trainer="$runfiles/trainer/trainer"
readonly config="$runfiles/tests/clusters/run.pbtxt"
# Sockets have short names, and nodes see this folder, too.
work=$(mktemp -d /tmp/capstan-clusters.XXXXXX)
readonly work
readonly table="${TEST_UNDECLARED_OUTPUTS_DIR:-$work}/table.txt"
# Bazel hides it.
export HOME="${HOME:-$(getent passwd "$(id -u)" | cut -d: -f6)}"
# Ranks share two cores.
export OMP_NUM_THREADS=1
failures=0

# Called at the end, whatever happened; a test defines stop_cluster.
stop_cluster() { :; }
finish() {
  stop_cluster || true
  # Whatever was started from here ends here.
  pkill -KILL -f "$work/" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

skip() {
  echo "skipped: $1"
  exit 0
}

need() {
  local program
  for program in "$@"; do
    command -v "$program" >/dev/null || skip "no $program"
  done
}

need_root() {
  [ "$(id -u)" -eq 0 ] || skip "$1 needs root"
}

# The Python environment with torchrun, Ray and MPI's wheels that .ci/run makes.
need_launchers() {
  launchers="${CAPSTAN_LAUNCHERS:-$HOME/.cache/capstan/launchers}/bin"
  [ -x "$launchers/$1" ] || skip "no $1 in $launchers"
}

fail() {
  echo "FAILED: $1" >&2
  failures=$((failures + 1))
}

# expect_text FILE WORD..: the file holds each of the words.
expect_text() {
  local file=$1 word
  shift
  for word in "$@"; do
    grep -qF -- "$word" "$file" && continue
    fail "no \"$word\" in $(basename "$file"):"
    cat "$file" >&2
  done
}

# await_port PORT [PREFIX..]: until somebody listens there; PREFIX as "ip netns exec X".
await_port() {
  local port=$1 i
  shift
  for ((i = 0; i < 1200; i++)); do
    "$@" ss -Hltn | grep -q ":$port " && return
    # sleeps: polls
    sleep 0.05
  done
  fail "nobody listens at port $port"
  exit 1
}

# kill_rank NETNS: one of the ranks there. The last to start is one; the highest number
# need not be, as numbers begin anew some time.
kill_rank() {
  local pids
  pids=$(ip netns pids "$1" | paste -sd,)
  [ -z "$pids" ] || ps -o pid= --sort=start_time -p "$pids" | tail -n 1 |
    xargs -r kill -KILL 2>/dev/null || true
}

# Of runs that last as long as what a test does to them, however fast the machine is.
readonly until_told=(--set train.max_steps=1000000 --set train.control=true)

# go_on FOLDER: waits until the run there has done some more steps.
go_on() {
  local before lines i
  for ((i = 0; i < 6000; i++)); do
    lines=$({ cat "$1/metrics.jsonl" 2>/dev/null || true; } | wc -l)
    [ "$lines" -le $((${before:=$lines} + 20)) ] || return 0
    # sleeps: polls
    sleep 0.01
  done
}

# end_after STEP FOLDER: tells such a run there, which has begun, to end after STEP or, if
# it is beyond that already, after twice as many, and so on. Prints after which one it ends.
end_after() {
  local step=$1 folder=$2 answer i
  for (( ; ; step *= 2)); do
    echo "{\"id\": \"end$step\", \"do\": \"max_steps\", \"value\": $step}" \
      >>"$folder/control.jsonl"
    answer=
    for ((i = 0; i < 6000; i++)); do
      answer=$(grep -F "\"id\":\"end$step\"" "$folder/events.jsonl") && break
      # sleeps: polls
      sleep 0.02
    done
    case $answer in
      "")
        echo "the run in $folder isn't told its end" >&2
        exit 1
        ;;
      *'"refused: '*) ;;
      *)
        echo "$step"
        return
        ;;
    esac
  done
}

# The run all others are compared with, in reference.STEPS; [STEPS]: another one than that
# of 20 steps, unless it is there.
reference() {
  local out="$work/reference.${1:-20}"
  [ ! -d "$out" ] || return 0
  "$trainer" --config="$config" --set launch.processes=4 --set train.max_steps="${1:-20}" \
    --set output_dir="$out" >"$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
}

# expect_same NAME FOLDER [STEPS]: the curve and the weights of the reference.
expect_same() {
  reference "${3:-20}"
  python3 - "$1" "$work/reference.${3:-20}" "$2" "${3:-20}" <<'PY' | tee -a "$table"
import hashlib, json, sys
name, *folders, steps = sys.argv[1:]
def read(folder):
    losses = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    losses = {m["step"]: m["loss"] for m in losses if "loss" in m}
    weights = open(folder + "/final/model.safetensors", "rb").read()
    return losses, hashlib.sha256(weights).hexdigest()
(a, weights_a), (b, weights_b) = map(read, folders)
assert len(a) == int(steps) and a.keys() == b.keys(), (sorted(a), sorted(b))
worst = max(abs(a[k] - b[k]) for k in a)
same = "the same weights" if weights_a == weights_b else "OTHER WEIGHTS"
print(f"{name:44} {worst:9.1e}  {same}  {weights_b[:16]}")
sys.exit(0 if worst <= 1e-6 and weights_a == weights_b else 1)
PY
  [ "${PIPESTATUS[0]}" -eq 0 ] || fail "$1 isn't the reference run"
}

end() {
  [ "$failures" -eq 0 ] || { echo "$failures failed" >&2; exit 1; }
}
