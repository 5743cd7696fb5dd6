#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What `trainer script` prints, submitted to its launcher.
source "$(dirname "$0")/common.sh"
need_launchers ray

reference
# script LAUNCHER OUT OPTION..: prints the file for a run into OUT.
script() {
  local launcher=$1 out="$work/$2"
  shift 2
  "$trainer" script --for="$launcher" --config="$config" "$@" \
    --set output_dir="$out" >"$out.script" || fail "trainer script --for=$launcher"
}

# done NAME OUT STATUS
ended() {
  if [ "$3" -eq 0 ]; then
    expect_same "$1" "$work/$2"
  else
    cat "$work/$2".*log >&2
    fail "$1"
  fi
}

script mpi mpi --nodes=1 --processes=4
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
if command -v mpirun.openmpi >/dev/null; then
  echo "localhost slots=4" >"$work/hosts.openmpi"
  status=0
  MPIRUN=mpirun.openmpi timeout 100 bash "$work/mpi.script" "$work/hosts.openmpi" \
    >"$work/mpi.log" 2>&1 || status=$?
  ended "script for Open MPI" mpi $status
fi
if command -v mpirun.mpich >/dev/null; then
  echo "localhost:4" >"$work/hosts.mpich"
  script mpi mpich --nodes=1 --processes=4
  status=0
  MPIRUN=mpirun.mpich timeout 100 bash "$work/mpich.script" "$work/hosts.mpich" \
    >"$work/mpich.log" 2>&1 || status=$?
  ended "script for MPICH" mpich $status
fi

script torchrun torchrun --nodes=2 --processes=2
# Below the ports that the kernel gives to connections.
endpoint=127.0.0.1:$((20000 + RANDOM % 9000))
agents=()
for node in 0 1; do
  CAPSTAN_HOST_ID=node$node PATH="$launchers:$PATH" timeout 100 \
    bash "$work/torchrun.script" $endpoint >"$work/torchrun.$node.log" 2>&1 &
  agents+=($!)
done
status=0
for agent in "${agents[@]}"; do wait "$agent" || status=$?; done
ended "script for torchrun" torchrun $status

script ray ray --nodes=2 --processes=2
status=0
CPUS_PER_RANK=0.5 RAY_TRAIN_V2_ENABLED=1 RAY_TMPDIR="$work" RAY_USAGE_STATS_ENABLED=0 \
  timeout 200 "$launchers/python" "$work/ray.script" >"$work/ray.log" 2>&1 || status=$?
ended "script for Ray" ray $status

# What the client library's classes don't know isn't in the manifests.
script k8s k8s --nodes=2 --processes=2 --gpus --shared=/ --request=memory=8Gi \
  --rdma=rdma/hca=1 --node_selector=zone=a
"$launchers/python" - "$work/k8s.script" <<'PY' || fail "script for Kubernetes"
import json, sys
import yaml
from kubernetes import client

api = client.ApiClient()
kinds = {"Service": "V1Service", "ConfigMap": "V1ConfigMap", "Secret": "V1Secret",
         "Job": "V1Job"}
documents = list(yaml.safe_load_all(open(sys.argv[1])))
assert [d["kind"] for d in documents] == list(kinds), documents
for document in documents:
    known = api.deserialize(json.dumps(document), kinds[document["kind"]],
                            "application/json")
    again = json.loads(json.dumps(api.sanitize_for_serialization(known)))
    assert again == document, (again, document)
job = documents[-1]["spec"]
assert job["completions"] == job["parallelism"] == 2
container = job["template"]["spec"]["containers"][0]
assert container["resources"]["limits"] == {
    "memory": "8Gi", "nvidia.com/gpu": "2", "rdma/hca": "1"}, container["resources"]
assert container["resources"]["requests"]["cpu"] == "2"
assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
assert job["template"]["spec"]["nodeSelector"] == {"zone": "a"}
assert [r["action"] for r in job["podFailurePolicy"]["rules"]] == [
    "Ignore", "FailJob", "FailJob"]
# As this machine sees it.
text = documents[1]["data"]["run.pbtxt"].replace('"/shared/', '"/')
open(sys.argv[1] + ".pbtxt", "w").write(text)
PY
# Its config is a config.
"$trainer" check --config="$work/k8s.script.pbtxt" --set launch.processes=2 \
  >"$work/check.log" 2>&1 || { cat "$work/check.log" >&2; fail "the ConfigMap"; }

# A real SLURM: submitted, stopped for want of time, requeued, done.
if command -v slurmctld >/dev/null && [ "$(id -u)" -eq 0 ]; then
  readonly slurm="$runfiles/tests/clusters/slurm_cluster.sh"
  "$slurm" start "$work/slurm" >"$work/slurm.daemons" 2>&1 </dev/null || exit 1
  stop_cluster() { "$slurm" stop "$work/slurm" >/dev/null 2>&1; }
  export SLURM_CONF="$work/slurm/slurm.conf"
  script slurm slurm --nodes=2 --processes=2
  status=0
  sbatch --wait --overcommit -o "$work/slurm.log" "$work/slurm.script" >/dev/null ||
    status=$?
  ended "script for SLURM" slurm $status

  # SIGTERM, as the scheduler sends it before the end of a job's time.
  script slurm requeued --nodes=2 --processes=2 --set train.save_every=100000 \
    "${until_told[@]}"
  job=$(sbatch --parsable --overcommit -o "$work/requeued.log" "$work/requeued.script")
  for _ in $(seq 200); do
    [ -s "$work/requeued/metrics.jsonl" ] && break
    # sleeps: polls
    sleep 0.1
  done
  scancel --signal=TERM "$job.0" || fail "scancel --signal"
  for _ in $(seq 300); do
    [ "$(squeue -h -j "$job" -o %t)" = PD ] && break
    # sleeps: polls
    sleep 0.1
  done
  # SLURM would wait two minutes.
  scontrol update JobId="$job" StartTime=now
  for _ in $(seq 300); do
    grep -qF '"kind":"resume"' "$work/requeued/events.jsonl" && break
    # sleeps: polls
    sleep 0.2
  done
  # Only then it reads what it is told.
  go_on "$work/requeued"
  steps=$(end_after 400 "$work/requeued")
  for _ in $(seq 300); do
    [ -e "$work/requeued/final/model.safetensors" ] && break
    # sleeps: polls
    sleep 0.2
  done
  reference "$steps"
  if [ "$(scontrol show job "$job" | grep -o 'Restarts=[0-9]*')" != "Restarts=1" ]; then
    cat "$work/requeued.log" >&2
    fail "the job wasn't requeued"
  fi
  cmp "$work/requeued/final/model.safetensors" \
    "$work/reference.$steps/final/model.safetensors" ||
    { cat "$work/requeued.log" >&2; fail "a requeued job's weights"; }
fi
end
