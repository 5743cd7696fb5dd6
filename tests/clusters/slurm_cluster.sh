#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A real SLURM of two nodes on the loopback interface, in a folder of its own, with a
# munge daemon of its own: nothing of the machine's SLURM is touched.
#   slurm_cluster.sh start FOLDER    then SLURM_CONF is FOLDER/slurm.conf
#   slurm_cluster.sh stop FOLDER
set -euo pipefail
folder=$2
host=$(hostname -s)

running() {
  cat "$folder"/{ctld,d-n1,d-n2,munged}.pid 2>/dev/null || true
}

if [ "$1" = stop ]; then
  SLURM_CONF=$folder/slurm.conf timeout 5 scontrol shutdown || true
  sleep 0.5
  for pid in $(running); do kill "$pid" 2>/dev/null || true; done
  sleep 0.5
  for pid in $(running); do kill -KILL "$pid" 2>/dev/null || true; done
  exit 0
fi

mkdir -p "$folder"/{ctld,log,d-n1,d-n2}
chmod 755 "$folder"
(umask 077 && head -c 64 /dev/urandom >"$folder/key")
munged --force --key-file="$folder/key" --socket="$folder/munge.socket" \
  --pid-file="$folder/munged.pid" --log-file="$folder/munged.log" \
  --seed-file="$folder/seed"
port=$((20000 + RANDOM % 10000))
cat >"$folder/slurm.conf" <<CONF
ClusterName=capstan
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/munge.socket
StateSaveLocation=$folder/ctld
SlurmdSpoolDir=$folder/d-%n
SlurmctldPidFile=$folder/ctld.pid
SlurmdPidFile=$folder/d-%n.pid
SlurmctldLogFile=$folder/log/ctld.log
SlurmdLogFile=$folder/log/d-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
MpiDefault=none
KillWait=10
NodeName=n[1-2] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=4 RealMemory=1000 State=UNKNOWN
PartitionName=p Nodes=n[1-2] Default=YES MaxTime=INFINITE State=UP OverSubscribe=YES
CONF
export SLURM_CONF=$folder/slurm.conf
slurmctld
slurmd -N n1
slurmd -N n2
for _ in $(seq 100); do
  [ "$(sinfo -h -o '%D %t' 2>/dev/null)" = "2 idle" ] && exit 0
  # sleeps: polls
  sleep 0.2
done
sinfo >&2 || true
tail -5 "$folder"/log/*.log >&2
exit 1
