#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two hosts, which are network namespaces: our launcher on each, and the environments
# that Kubernetes' operators, SkyPilot and dstack give.
source "$(dirname "$0")/common.sh"
need ip ss
need_root "ip netns"

readonly net="cap$$"
readonly hosts=("${net}a" "${net}b")
readonly ips=(10.213.77.1 10.213.77.2)
stop_cluster() {
  local host
  for host in "${hosts[@]}"; do
    ip netns pids "$host" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
    ip netns delete "$host" 2>/dev/null || true
  done
}
ip netns add "${hosts[0]}" 2>/dev/null || skip "can't add network namespaces"
ip netns add "${hosts[1]}"
ip link add "${net}v" netns "${hosts[0]}" type veth peer name "${net}v" \
  netns "${hosts[1]}" || skip "no veth"
for k in 0 1; do
  ip -n "${hosts[$k]}" address add "${ips[$k]}/24" dev "${net}v"
  ip -n "${hosts[$k]}" link set "${net}v" up
  ip -n "${hosts[$k]}" link set lo up
done

# on HOST COMMAND..: runs it there, as a machine that shares no memory.
on() {
  local k=$1
  shift
  CAPSTAN_HOST_ID=${hosts[$k]} timeout 150 ip netns exec "${hosts[$k]}" "$@"
}

# both NAME OUT FUNCTION FLAG..: FUNCTION k starts the run on host k, which has 20 steps,
# or those in OUT.end.
both() {
  local name=$1 out="$work/$2" start=$3 k starts=()
  shift 3
  for k in 0 1; do
    "$start" "$k" --config="$config" --set output_dir="$out" "$@" \
      >"$out.$k.log" 2>&1 &
    starts+=($!)
  done
  for k in 0 1; do
    wait "${starts[$k]}" || { cat "$out.$k.log" >&2; fail "$name"; return 0; }
  done
  expect_same "$name" "$out" "$(cat "$out.end" 2>/dev/null || echo 20)"
}

reference

# Our launcher.
ours() {
  local k=$1
  shift
  on "$k" "$trainer" --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29511" "$@"
}
both "ours, two hosts" ours ours --set launch.processes=2
expect_text "$work/ours.0.log" "node 0 of 2"
both "ours, two hosts, fsdp" fsdp ours --set launch.processes=2 \
  --set 'strategy=capstan.fsdp'
both "ours, two hosts, zero2" zero2 ours --set launch.processes=2 \
  --set 'strategy=capstan.zero2'

# Ranks that die are started again, on both hosts.
killed() {
  local k=$1
  shift
  if [ "$k" -eq 1 ]; then
    (
      # After 3 lines the last rank of host 0, and so on.
      while read -r lines victim; do
        for _ in $(seq 3000); do
          [ "$(cat "$work/killed/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$lines" ] && break
          # sleeps: polls
          sleep 0.02
        done
        kill_rank "${hosts[$victim]}"
      done <<<$'3 0\n8 1\n13 0'
      end_after 20 "$work/killed" >"$work/killed.end"
    ) &
  fi
  on "$k" "$trainer" --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29520" \
    --set launch.processes=2 --set launch.max_restarts=20 --set train.save_every=1 \
    "${until_told[@]}" "$@" || return
  wait
}
both "ours, two hosts, ranks killed three times" killed killed
expect_text "$work/killed.0.log" "starting the ranks again (3 of 20)" "restarted from step"

# Host 1 is gone for good: host 0 goes on with its two ranks, the same samples and the
# same global batch.
for k in 0 1; do
  CAPSTAN_HOST_ID=${hosts[$k]} timeout 150 ip netns exec "${hosts[$k]}" "$trainer" \
    --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29521" --config="$config" \
    --set output_dir="$work/gone" --set launch.processes=2 --set train.save_every=1 \
    --set launch.max_restarts=9 --set launch.min_processes=2 "${until_told[@]}" \
    >"$work/gone.$k.log" 2>&1 &
done
for _ in $(seq 3000); do
  [ "$(cat "$work/gone/metrics.jsonl" 2>/dev/null | wc -l)" -ge 5 ] && break
  # sleeps: polls
  sleep 0.02
done
ip netns pids "${hosts[1]}" | xargs -r kill -KILL
steps=$(end_after 20 "$work/gone")
wait
reference "$steps"
expect_text "$work/gone.0.log" "going on without host 1: 2 ranks are left" "completed" \
  "goes on with the run's global batch of 8 = micro 2 x 2 ranks x accumulation 2"
python3 - "$work/reference.$steps" "$work/gone" <<'PY' || fail "the run without host 1"
import json, sys
def losses(folder):
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    return [(m["step"], m["loss"]) for m in lines if "loss" in m]
a, b = map(losses, sys.argv[1:])
assert [s for s, _ in a] == [s for s, _ in b], b
worst = max(abs(x - y) for (_, x), (_, y) in zip(a, b))
print(f"without host 1: {worst:.1e}")
# Other sums of the same numbers.
sys.exit(0 if worst < 1e-4 else 1)
PY

# A host that waits alone ends by a signal. It waits beside what follows, and not
# beside what kills on its host.
on 1 timeout -s TERM 10 "$trainer" --nodes=2 --node_rank=1 --config="$config" \
  --rendezvous="${ips[0]}:29519" --set launch.processes=2 \
  --set output_dir="$work/waits" >"$work/waits.log" 2>&1 &
waits=$!

# Kubeflow's PyTorchJob: RANK and WORLD_SIZE are the pod's.
pytorchjob() {
  local k=$1
  shift
  on "$k" env RANK="$k" WORLD_SIZE=2 MASTER_ADDR="${ips[0]}" MASTER_PORT=29512 \
    PET_NNODES=2 PET_NODE_RANK="$k" PET_NPROC_PER_NODE=2 PYTHONUNBUFFERED=1 \
    "$trainer" "$@"
}
both "PyTorchJob, two pods" pytorchjob pytorchjob

# Kubeflow Trainer v2.
trainjob() {
  local k=$1
  shift
  on "$k" env PET_NNODES=2 PET_NPROC_PER_NODE=2 PET_NODE_RANK="$k" \
    PET_MASTER_ADDR="${ips[0]}" PET_MASTER_PORT=29513 "$trainer" "$@"
}
both "Kubeflow Trainer v2, two pods" trainjob trainjob

skypilot() {
  local k=$1
  shift
  on "$k" env SKYPILOT_NODE_RANK="$k" SKYPILOT_NUM_NODES=2 \
    SKYPILOT_NODE_IPS="$(printf '%s\n' "${ips[@]}")" SKYPILOT_NUM_GPUS_PER_NODE=0 \
    "$trainer" --set launch.processes=2 "$@"
}
both "SkyPilot, two nodes" skypilot skypilot

dstack() {
  local k=$1
  shift
  on "$k" env DSTACK_NODE_RANK="$k" DSTACK_NODES_NUM=2 \
    DSTACK_MASTER_NODE_IP="${ips[0]}" DSTACK_GPUS_PER_NODE=0 \
    "$trainer" --set launch.processes=2 "$@"
}
both "dstack, two nodes" dstack dstack

# What listens while a run lasts: nothing but loopback and the hosts' link. A stranger
# who connects meanwhile and talks nonsense disturbs nobody.
listening() {
  on 0 ss -Hltn | awk '{print $4}' | grep -v "^\(127\.\|\[::1\]\|${ips[0]}:\)"
}
strangers() {
  local k=$1
  shift
  if [ "$k" -eq 0 ]; then
    (
      for _ in $(seq 50); do
        listening >>"$work/listening" || true
        on 1 bash -c "printf 'GET / HTTP/1.1\r\n\r\n' >/dev/tcp/${ips[0]}/29514" \
          2>/dev/null || true
        # sleeps: polls
        sleep 0.05
      done
    ) &
  else
    sleep 1.5
  fi
  on "$k" "$trainer" --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29514" \
    --set launch.processes=2 "$@"
}
both "ours, with a stranger at the port" strangers strangers
[ ! -s "$work/listening" ] || fail "listens beyond its link: $(sort -u "$work/listening")"

# A rank of another run at the same port: refused, and the run goes on.
intruder() {
  local k=$1
  shift
  if [ "$k" -eq 0 ]; then
    (
      sleep 0.7
      on 1 env CAPSTAN_RUN_TOKEN=another "$trainer" --nodes=2 --node_rank=1 \
        --rendezvous="${ips[0]}:29515" --set launch.processes=2 \
        --config="$config" --set output_dir="$work/intruder" >"$work/other.log" 2>&1
    ) &
  else
    # The intruder comes first.
    for _ in $(seq 1200); do
      grep -qF "another token than rank 0" "$work/intruders.0.log" && break
      # sleeps: polls
      sleep 0.05
    done
  fi
  on "$k" env CAPSTAN_RUN_TOKEN=ours "$trainer" --nodes=2 --node_rank="$k" \
    --rendezvous="${ips[0]}:29515" --set launch.processes=2 "$@"
}
both "ours, with another run's node at the port" intruders intruder
# It goes on to look for its own rank 0.
expect_text "$work/intruders.0.log" "came to the meeting and left" "another token than rank 0"

# Hosts with other flags: the field's line, and no run.
for k in 0 1; do
  on "$k" "$trainer" --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29517" \
    --config="$config" --set launch.processes=2 --set output_dir="$work/differ" \
    --set optimizer.learning_rate=0.00$((1 + k)) >"$work/differ.$k.log" 2>&1 &
done
wait
expect_text "$work/differ.1.log" "ERROR" "learning_rate: 0.002" "learning_rate: 0.001"

# A folder that host 1 has of its own.
mkdir "$work/apart"
for k in 0 1; do
  on "$k" unshare -m sh -c "
    [ $k -eq 0 ] || mount -t tmpfs none '$work/apart'
    exec '$trainer' --nodes=2 --node_rank=$k --rendezvous=${ips[0]}:29518 \
      --config='$config' --set launch.processes=2 --set output_dir='$work/apart'" \
    >"$work/apart.$k.log" 2>&1 &
done
wait
expect_text "$work/apart.1.log" "ERROR" "must be a folder that all hosts share"

# The host that has waited alone.
wait "$waits" 2>/dev/null || true
expect_text "$work/waits.log" "stopped before the ranks had met"

# A link that is cut without a word: each host says that it doesn't hear the other, and
# ends with the watchdog's code.
cuts=()
for k in 0 1; do
  on "$k" "$trainer" --nodes=2 --node_rank="$k" --rendezvous="${ips[0]}:29520" \
    --config="$config" --set launch.processes=2 --set output_dir="$work/cut" \
    --set train.max_steps=1000000 --set train.hang_floor_seconds=4 \
    >"$work/cut.$k.log" 2>&1 &
  cuts+=($!)
done
for _ in $(seq 600); do
  [ "$(cat "$work/cut/metrics.jsonl" 2>/dev/null | wc -l)" -lt 10 ] || break
  # sleeps: polls
  sleep 0.1
done
ip -n "${hosts[0]}" link set "${net}v" down
for k in 0 1; do
  code=0
  wait "${cuts[$k]}" || code=$?
  [ "$code" -eq 75 ] || fail "host $k ended with $code, not 75, when its link was cut"
  expect_text "$work/cut.$k.log" "WARNING: no step for" "exit code 75"
done
expect_text "$work/cut.0.log" "host ${hosts[1]} (ranks 2, 3) doesn't answer"
expect_text "$work/cut.1.log" "host ${hosts[0]} (ranks 0, 1) doesn't answer"
ip -n "${hosts[0]}" link set "${net}v" up

# A node that disagrees on the number of nodes: a sentence on both, and no hang.
for k in 0 1; do
  on "$k" "$trainer" --nodes=$((2 + k)) --node_rank="$k" --config="$config" \
    --rendezvous="${ips[0]}:29516" --set launch.processes=2 \
    --set output_dir="$work/disagree" >"$work/disagree.$k.log" 2>&1 &
done
wait
expect_text "$work/disagree.1.log" "ERROR"
end
