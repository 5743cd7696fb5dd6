#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that a real SLURM places, on two nodes.
source "$(dirname "$0")/common.sh"
need slurmctld slurmd munged srun sbatch
need_root "a SLURM of one's own"

readonly slurm="$runfiles/tests/clusters/slurm_cluster.sh"
# Its daemons keep standard output open.
"$slurm" start "$work/slurm" >"$work/slurm.log" 2>&1 </dev/null ||
  { cat "$work/slurm.log" >&2; exit 1; }
stop_cluster() { "$slurm" stop "$work/slurm" >/dev/null 2>&1; }
export SLURM_CONF="$work/slurm/slurm.conf"
# Both nodes are this machine: their ranks shall not find that they share memory.
cat >"$work/rank" <<SCRIPT
#!/bin/sh
export CAPSTAN_HOST_ID=\$SLURMD_NODENAME
exec "$trainer" --config="$config" "\$@"
SCRIPT
chmod +x "$work/rank"

# run NAME OUT SRUN-OPTION..: a run under srun.
run() {
  local name=$1 out="$work/$2"
  shift 2
  timeout 100 srun --overcommit "$@" "$work/rank" --set output_dir="$out" \
    >"$out.log" 2>&1 || { cat "$out.log" >&2; fail "$name"; return; }
  expect_same "$name" "$out"
}

reference
printf 'n1\nn1\nn1\nn2\n' >"$work/hosts"
run "srun, 2 nodes, 2 tasks each" even -N2 -n4 --ntasks-per-node=2
expect_text "$work/even.log" "SLURM: job" "of 2" "of 4"
SLURM_HOSTFILE="$work/hosts" \
  run "srun, 2 nodes, 3 and 1 tasks" uneven -N2 -n4 -m arbitrary
run "srun, 2 nodes, tasks dealt round" cyclic -N2 -n4 -m cyclic
run "srun, 1 node" one -N1 -n4

# A batch script that forgets srun: one process that would wait for ever.
cat >"$work/batch.sh" <<SCRIPT
#!/bin/sh
timeout 60 "$trainer" --config="$config" --set output_dir="$work/alone" >"$work/batch.log" 2>&1
echo "exit code \$?" >>"$work/batch.log"
SCRIPT
sbatch --wait -N2 -n4 --overcommit -o /dev/null "$work/batch.sh" >/dev/null || true
expect_text "$work/batch.log" "srun" "exit code 1"

# A job that sbatch starts, requeued: another restart, the same run goes on.
cat >"$work/job.sh" <<SCRIPT
#!/bin/sh
srun --overcommit "$work/rank" --set output_dir="$work/job" --set train.save_every=5 \
  --set 'train.resume=AUTO' >>"$work/job.log" 2>&1
SCRIPT
sbatch --wait -N2 -n4 --ntasks-per-node=2 --overcommit -o /dev/null "$work/job.sh" \
  >/dev/null || { cat "$work/job.log" >&2; fail "sbatch with srun"; }
expect_same "sbatch, 2 nodes" "$work/job"

# A job that is requeued three times in the midst: it saves each time, and goes on.
cat >"$work/requeued.sh" <<SCRIPT
#!/bin/sh
exec srun --kill-on-bad-exit=0 --overcommit "$work/rank" --set output_dir="$work/requeued" \
  ${until_told[*]} --set train.resume=AUTO >>"$work/requeued.log" 2>&1
SCRIPT
state() { squeue -h -j "$job" -o %t 2>/dev/null || true; }
job=$(sbatch --parsable --requeue --open-mode=append -N2 -n4 --ntasks-per-node=2 \
  --overcommit -o /dev/null "$work/requeued.sh")
for _ in 1 2 3; do
  go_on "$work/requeued"
  scontrol requeue "$job" || { fail "the job ended too early"; break; }
  for _ in $(seq 200); do
    [ "$(state)" = PD ] && break
    # sleeps: polls
    sleep 0.1
  done
  # SLURM would wait two minutes.
  scontrol update JobId="$job" StartTime=now
done
go_on "$work/requeued"
steps=$(end_after 200 "$work/requeued")
for _ in $(seq 1800); do
  # sleeps: polls
  case "$(state)" in PD | R | CG) sleep 0.1 ;; *) break ;; esac
done
[ "$(grep -c "saved in" "$work/requeued.log")" -ge 3 ] ||
  { cat "$work/requeued.log" >&2; fail "the job wasn't stopped three times"; }
reference "$steps"
python3 - "$work/reference.$steps" "$work/requeued" <<'PY' || fail "the requeued job"
import json, sys
def losses(folder):
    lines = [json.loads(line) for line in open(folder + "/metrics.jsonl")]
    return [(m["step"], m["loss"]) for m in lines if "loss" in m]
a, b = map(losses, sys.argv[1:])
weights = [open(f + "/final/model.safetensors", "rb").read() for f in sys.argv[1:]]
print("requeued three times:", len(b), "steps,", sum(x != y for x, y in zip(a, b)), "differ")
sys.exit(0 if a == b and weights[0] == weights[1] else 1)
PY

# Two steps of one job at once.
for k in 1 2; do
  run "two srun at once: $k" "twice$k" -N2 -n4 --ntasks-per-node=2 &
done
wait
for k in 1 2; do
  grep -q "two srun at once: $k .* the same weights" "$table" ||
    fail "two srun at once: $k"
done

# Hosts that come and go, each a job: others join the first, scancel is a notice, and a
# node that is lost goes with its host.
cat >"$work/worlds.sh" <<SCRIPT
#!/bin/sh
export CAPSTAN_HOST_ID=\$SLURM_JOB_ID
exec "$trainer" --config="$config" --set output_dir="$work/worlds" \
  --rendezvous=127.0.0.1:29598 --set launch.processes=1 --set launch.max_processes=4 \
  --set launch.max_restarts=9 --set batch.global_batch_size=24 --set train.max_steps=100000
SCRIPT
# host NODE: a job's number.
host() {
  sbatch --parsable --no-requeue -N1 -n1 -w "$1" -o "$work/worlds.%j.log" "$work/worlds.sh"
}
# said JOB TEXT: waits until the job's log has it.
said() {
  local i
  for ((i = 0; i < 1200; i++)); do
    grep -q "$2" "$work/worlds.$1.log" 2>/dev/null && return 0
    # sleeps: polls
    sleep 0.05
  done
  fail "job $1 doesn't say: $2"
}
first=$(host n1)
said "$first" "loss"
second=$(host n2)
said "$first" "host $second has come"
third=$(host n2)
said "$first" "host $third has come"
scancel "$second"
said "$second" "this host has left the run"
said "$first" "host $second leaves"
scontrol update NodeName=n1 State=DOWN Reason=test
said "$third" "going on with 1 host, 1 rank"
scancel --signal=INT --batch "$third"
said "$third" "stopped after step .*; saved in"
python3 - "$work/worlds/metrics.jsonl" <<'PY' || fail "the jobs that join a run"
import json, sys
steps = [m["step"] for m in map(json.loads, open(sys.argv[1])) if "loss" in m]
sys.exit(0 if steps == list(range(1, len(steps) + 1)) else 1)
PY
end
