#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Hosts that come and go while a run goes on (launch.max_processes), as processes of this
# machine: they join, die, leave with notice, and lead; a rank dies; a spare steps in. No
# step is lost or done twice, and the weights are those of a world that never changed.
source "$(dirname "$0")/common.sh"
need python3 ss

declare -A host
stop_cluster() { kill -KILL "${host[@]}" 2>/dev/null || true; }
port=29580
while ss -ltn | grep -q ":$port "; do port=$((port + 1)); done

settings=(--config="$config" --set train.deterministic=true
  --set batch.micro_batch_size=1 --set batch.global_batch_size=12 --set launch.processes=1)

# start NAME FLAG..: a host of the run in $out.
start() {
  local name=$1
  shift
  CAPSTAN_HOST_ID="$name" setsid timeout 150 "$trainer" "${settings[@]}" "${until_told[@]}" \
    --rendezvous="127.0.0.1:$port" --set launch.max_processes=4 \
    --set launch.max_restarts=50 --set output_dir="$out" "$@" >"$out.$name.log" 2>&1 &
  host[$name]=$!
}
# at STEP: waits until it is in the file.
at() {
  local i
  for ((i = 0; i < 6000; i++)); do
    if [ "$(cat "$out/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$1" ]; then
      echo "$(date +%s.%N) $1" >>"$out.at"
      return 0
    fi
    # sleeps: polls
    sleep 0.01
  done
  fail "the run doesn't reach step $1"
  tail -n 20 "$out".*.log >&2
  exit 1
}
# said TEXT: waits until a host has printed it, since steps may be faster than hosts start.
said() {
  local i
  for ((i = 0; i < 1200; i++)); do
    ! grep -qF -- "$1" "$out".*.log || return 0
    # sleeps: polls
    sleep 0.05
  done
  fail "no host says \"$1\""
  tail -n 20 "$out".*.log >&2
  exit 1
}
trainer_of() { pgrep -P "${host[$1]}" -f "$trainer" | head -n 1; }
# kill_host NAME: launcher and ranks, as when the machine goes.
kill_host() { kill -KILL -- "-${host[$1]}" 2>/dev/null; }

out="$work/run"
start a
# Of two that start at once either may lead.
await_port "$port"
start b
at 40
start c
said "host c has come: going on with 3 hosts"
at 80
kill_host b
at 120
start d
said "host d has come"
at 160
kill_host a # which leads
at 200
start e
said "host e has come"
at 240
kill -TERM "$(trainer_of c)" # which leads now
at 280
pkill -KILL -P "$(trainer_of d)"
at 320
start f
said "host f has come"
at 350
kill -TERM "$(trainer_of d)" "$(trainer_of e)"
wait "${host[d]}" "${host[e]}" || true
steps=$(end_after 400 "$out")
wait "${host[c]}" && fail "a host that left" || [ $? -eq 143 ] || fail "its exit code"
wait "${host[f]}" || fail "the run"
expect_text "$out.a.log" "has come: going on with 3 hosts, 3 ranks" \
  "is gone: going on with 2 hosts, 2 ranks"
# On a busy machine d may come to the new leader after it has begun without it.
expect_text "$out.c.log" "is gone: going on with" \
  "SIGTERM: this host leaves the run" "this host has left the run"
expect_text "$out.d.log" "was killed by signal 9 (SIGKILL): going on with"

"$trainer" "${settings[@]}" --set launch.processes=2 --set train.max_steps="$steps" \
  --set output_dir="$work/reference" >"$work/reference.log" 2>&1 ||
  { cat "$work/reference.log" >&2; exit 1; }
python3 - "$work/reference" "$out" <<'PY' || fail "the run isn't the undisturbed one"
import hashlib, json, sys
def read(folder):
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    weights = open(folder + "/final/model.safetensors", "rb").read()
    return ([(m["step"], m["loss"]) for m in lines if "loss" in m],
            hashlib.sha256(weights).hexdigest())
(a, weights_a), (b, weights_b) = map(read, sys.argv[1:])
assert [s for s, _ in a] == [s for s, _ in b], "steps are missing or there twice"
worst = max(abs(x - y) for (_, x), (_, y) in zip(a, b))
print(f"worlds of 1 to 4: {worst:.1e}  {weights_a[:16]} {weights_b[:16]}")
sys.exit(0 if worst == 0 and weights_a == weights_b else 1)
PY

# Lines of steps that are done again replace the former ones: what a change cost is seen
# by the step from which it went on. Of what was done then two may not be copied yet.
python3 - "$out" <<'PY' || fail "steps were done again"
import json, sys
out, = sys.argv[1:]
done = [tuple(map(float, line.split())) for line in open(out + ".at")]
events = [json.loads(line) for line in open(out + "/events.jsonl")]
restarts = [(e["time"], e["step"]) for e in events if e["kind"] == "restart"]
assert len(restarts) >= 7, restarts
for time, step in restarts:
    least = max((s for t, s in done if t <= time), default=2) - 2
    assert step >= least, f"went on from {step}, when {least + 2:.0f} were done"
PY
! grep -l "restarted from the beginning" "$out".*.log || fail "from the beginning"

# A host with another config isn't taken in, and doesn't disturb.
out="$work/other"
start a --set launch.max_processes=2
at 10
start b --set launch.max_processes=2 --set train.max_steps=999999
wait "${host[b]}" && fail "a host with another config"
expect_text "$out.b.log" "this host's config isn't that of the run's other hosts"
end_after 100 "$out" >/dev/null
wait "${host[a]}" || fail "the run beside it"
end
