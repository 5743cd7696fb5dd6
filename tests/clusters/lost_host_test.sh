#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Three hosts, which are network namespaces on one bridge, and runs without a single
# checkpoint: what ranks go on from after a death is in the memory of the hosts that are
# left. Whichever host is lost, rank 0's too, no finished step is.
source "$(dirname "$0")/common.sh"
need ip python3 ss unshare
need_root "ip netns"
# Of its own, so that what is left there is this test's.
if [ -z "${OWN_SHARED_MEMORY:-}" ]; then
  unshare --mount true 2>/dev/null || skip "no mount namespaces"
  rmdir "$work"
  OWN_SHARED_MEMORY=1 exec unshare --mount "$0"
fi
mount -t tmpfs none /dev/shm

readonly net="cam$$"
hosts=()
stop_cluster() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns delete "$host" 2>/dev/null || true
  done
  ip link delete "$net" 2>/dev/null || true
}
ip link add "$net" type bridge 2>/dev/null || skip "no bridge"
ip link set "$net" up
for k in 0 1 2; do
  ip netns add "$net$k" 2>/dev/null || skip "can't add network namespaces"
  hosts+=("$net$k")
  ip link add "$net.$k" type veth peer name eth0 netns "${hosts[$k]}" || skip "no veth"
  ip link set "$net.$k" master "$net"
  ip link set "$net.$k" up
  ip -n "${hosts[$k]}" address add "10.213.78.$((k + 1))/24" dev eth0
  ip -n "${hosts[$k]}" link set eth0 up
  ip -n "${hosts[$k]}" link set lo up
done
before=$(ls /dev/shm | wc -l)

# start NAME HOSTS RANKS PORT FLAG..: a run on so many hosts with RANKS each, until told;
# its processes' ids are in `started`.
start() {
  local name=$1 count=$2 ranks=$3 port=$4 k
  shift 4
  started=()
  for ((k = 0; k < count; k++)); do
    CAPSTAN_HOST_ID=${hosts[$k]} timeout 120 ip netns exec "${hosts[$k]}" "$trainer" \
      --nodes="$count" --node_rank="$k" --rendezvous="10.213.78.1:$port" \
      --config="$config" --set output_dir="$work/$name" --set launch.processes="$ranks" \
      --set launch.max_restarts=50 "${until_told[@]}" "$@" \
      >"$work/$name.$k.log" 2>&1 &
    started+=($!)
  done
}
lines() { cat "$work/$1/metrics.jsonl" 2>/dev/null | wc -l; }
# reach NAME STEPS: waits until so many are in the file.
reach() {
  local i
  for ((i = 0; i < 3000; i++)); do
    [ "$(lines "$1")" -lt "$2" ] || return 0
    # sleeps: polls
    sleep 0.02
  done
  fail "$1 doesn't reach step $2"
  tail -n 20 "$work/$1".*.log >&2
}
# undisturbed RANKS STEPS: a run of so many, in undisturbedRANKS.STEPS, unless it is there;
# of four ranks, or of three with another global batch.
undisturbed() {
  local out="$work/undisturbed$1.$2"
  [ ! -d "$out" ] || return 0
  "$trainer" --config="$config" --set launch.processes="$1" --set train.max_steps="$2" \
    --set batch.global_batch_size=$(($1 == 4 ? 8 : 12)) --set output_dir="$out" \
    >"$out.log" 2>&1 || { cat "$out.log" >&2; exit 1; }
}
# same NAME RANKS STEPS MOST: the curve of the undisturbed one, within MOST; 0: and the
# weights.
same() {
  undisturbed "$2" "$3"
  python3 - "$work/undisturbed$2.$3" "$work/$1" "$4" "$1" <<'PY' | tee -a "$table"
import hashlib, json, sys
*folders, most, name = sys.argv[1:]
def read(folder):
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    weights = open(folder + "/final/model.safetensors", "rb").read()
    return ([(m["step"], m["loss"]) for m in lines if "loss" in m],
            hashlib.sha256(weights).hexdigest())
(a, weights_a), (b, weights_b) = map(read, folders)
assert [s for s, _ in a] == [s for s, _ in b], "steps are missing or there twice"
worst = max(abs(x - y) for (_, x), (_, y) in zip(a, b))
print(f"{name:44} {worst:9.1e}  {weights_b[:16]}")
sys.exit(0 if worst <= float(most) and (float(most) > 0 or weights_a == weights_b)
         else 1)
PY
  [ "${PIPESTATUS[0]}" -eq 0 ] || fail "$1 isn't the undisturbed run"
}
# lost NAME HOST STEP: where the run went on, by the log of the host that now has rank 0,
# is at most one step before STEP, which was in the file when the host was lost: the
# mirror of the last may have been on its way.
lost() {
  local from
  from=$(grep -o "restarted from step [0-9]*" "$work/$1.$2.log" | tail -n 1 |
    grep -o "[0-9]*$") || true
  if [ -z "$from" ] || [ "$from" -lt $(($3 - 2)) ]; then
    fail "$1 had step $3, and went on from ${from:-the beginning}"
    cat "$work/$1.$2.log" >&2
  fi
}
kill_host() {
  # Some end by themselves when the first is gone.
  ip netns pids "${hosts[$1]}" | xargs -r kill -KILL 2>/dev/null || true
  ip link set "$net.$1" down
}

# Ranks of both hosts die: the same bits.
for strategy in ddp zero2 fsdp; do
  start "killed_$strategy" 2 2 29541 --set "strategy=capstan.$strategy"
  while read -r at victim; do
    reach "killed_$strategy" "$at"
    kill_rank "${hosts[$victim]}"
  done <<<$'20 0\n60 1\n100 0'
  steps=$(end_after 150 "$work/killed_$strategy")
  wait "${started[@]}"
  expect_text "$work/killed_$strategy.0.log" "(3 of 50)" "completed"
  same "killed_$strategy" 4 "$steps" 0
  lost "killed_$strategy" 0 100
done

# Host 1 of two is lost, then host 0 of two.
for victim in 1 0; do
  name="without_$victim"
  left=$((1 - victim))
  start "$name" 2 2 29542 --set launch.min_processes=2 --set launch.return_seconds=2
  reach "$name" 40
  at=$(lines "$name")
  kill_host "$victim"
  steps=$(end_after 150 "$work/$name")
  wait 2>/dev/null
  expect_text "$work/$name.$left.log" "going on without host $victim: 2 ranks are left" \
    "global batch of 8 = micro 2 x 2 ranks x accumulation 2" "completed"
  same "$name" 4 "$steps" 1e-4
  lost "$name" "$left" "$at"
  ip link set "$net.$victim" up
done

# Rank 0's host of three: the others meet at the next one. Then that is lost, too.
start three 3 1 29543 --set strategy=capstan.fsdp --set batch.global_batch_size=12 \
  --set launch.min_processes=1 --set launch.return_seconds=4
reach three 30
at=$(lines three)
kill_host 0
reach three 70
lost three 1 "$at"
at=$(lines three)
kill_host 1
steps=$(end_after 150 "$work/three")
wait 2>/dev/null
expect_text "$work/three.1.log" "going on without host 0: 2 ranks are left"
expect_text "$work/three.2.log" "going on without host 0: 2 ranks are left" \
  "going on without host 0: 1 rank is left" "completed"
lost three 2 "$at"
same three 3 "$steps" 1e-4

# The leader's host of three that may come and go is cut off: the others go on, nothing is
# written beside them, and once it reaches them again it follows the new leader.
ip link set "$net.0" up
ip link set "$net.1" up
started=()
for k in 0 1 2; do
  CAPSTAN_HOST_ID=${hosts[$k]} timeout 120 ip netns exec "${hosts[$k]}" "$trainer" \
    --rendezvous=10.213.78.1:29544 --config="$config" --set output_dir="$work/cut" \
    --set launch.processes=1 --set launch.max_processes=3 --set launch.nodes=3 \
    --set launch.max_restarts=50 \
    --set launch.return_seconds=5 "${until_told[@]}" >"$work/cut.$k.log" 2>&1 &
  started+=($!)
  # The first one leads.
  [ "$k" -gt 0 ] || await_port 29544 ip netns exec "${hosts[0]}"
done
# await TEXT: in the log of either of the two that go on.
await() {
  local i
  for ((i = 0; i < 600; i++)); do
    grep -q "$1" "$work"/cut.[12].log && return
    # sleeps: polls
    sleep 0.1
  done
}
reach cut 20
ip link set "$net.0" down
await "is gone: going on with 2 hosts"
reach cut $(($(lines cut) + 20))
ip link set "$net.0" up
await "has come: going on with 3 hosts"
reach cut $(($(lines cut) + 10))
kill -INT "$(pgrep -P "${started[0]}")" # timeout would send it twice
for one in "${started[@]}"; do
  code=0
  wait "$one" || code=$?
  [ "$code" -eq 0 ] || [ "$code" -eq 130 ] || fail "a host of the run that was cut: exit code $code"
done
cat "$work"/cut.[12].log >"$work/cut.log" # either led
expect_text "$work/cut.log" "is gone: going on with 2 hosts" \
  "has come: going on with 3 hosts, 3 ranks"
python3 - "$work/cut/metrics.jsonl" <<'PY' || fail "steps are missing or there twice"
import json, sys
steps = [m["step"] for m in map(json.loads, open(sys.argv[1])) if "loss" in m]
sys.exit(0 if steps == list(range(1, len(steps) + 1)) else 1)
PY

[ "$(ls /dev/shm | wc -l)" -le "$before" ] || fail "something is left in /dev/shm"
end
