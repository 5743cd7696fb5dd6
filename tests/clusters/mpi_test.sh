#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that Open MPI's and MPICH's mpirun start: Debian's, and those of the wheels.
source "$(dirname "$0")/common.sh"

# run NAME OUT COMMAND..: a run under that mpirun.
run() {
  local name=$1 out="$work/$2"
  shift 2
  timeout 100 "$@" "$trainer" --config="$config" --set output_dir="$out" \
    >"$out.log" 2>&1 || { cat "$out.log" >&2; fail "$name"; return; }
  expect_same "$name" "$out"
}

readonly wheels="${CAPSTAN_LAUNCHERS:-$HOME/.cache/capstan/launchers}/bin"
command -v mpirun.openmpi >/dev/null || command -v mpirun.mpich >/dev/null ||
  [ -x "$wheels/mpiexec.hydra" ] || skip "no mpirun"
reference
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

if command -v mpirun.openmpi >/dev/null; then
  run "mpirun of Open MPI 4" openmpi mpirun.openmpi --oversubscribe -np 4
  expect_text "$work/openmpi.log" "Open MPI: " "of 4"
  # Two apps: local ranks don't follow from ranks.
  run "mpirun of Open MPI 4, two apps" apps mpirun.openmpi --oversubscribe \
    -np 1 "$trainer" --config="$config" --set output_dir="$work/apps" : -np 3
fi
if command -v mpirun.mpich >/dev/null; then
  run "mpirun of MPICH 4" mpich mpirun.mpich -np 4
  expect_text "$work/mpich.log" "MPICH: " "of 4"
fi
if [ -x "$wheels/prterun" ]; then
  run "prterun of Open MPI 5's wheel" prte "$wheels/prterun" --personality ompi \
    --allow-run-as-root --map-by :OVERSUBSCRIBE -np 4
fi
if [ -x "$wheels/mpiexec.hydra" ]; then
  run "mpiexec of MPICH 5's wheel" hydra "$wheels/mpiexec.hydra" -np 4
fi
end
