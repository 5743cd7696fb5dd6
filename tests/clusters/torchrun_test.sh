#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Ranks that two agents of torchrun start, which meet by c10d.
source "$(dirname "$0")/common.sh"
need_launchers torchrun
reference

# run NAME OUT OPTION..: two agents of two ranks.
run() {
  local name=$1 out="$work/$2" node agents=()
  shift 2
  for node in 0 1; do
    CAPSTAN_HOST_ID=node$node timeout 150 "$launchers/torchrun" --nnodes=2 \
      --nproc-per-node=2 "$@" $([ "$*" = "${*#*static}" ] || echo --node-rank=$node) \
      --no-python "$trainer" --config="$config" --set output_dir="$out" \
      >"$out.$node.log" 2>&1 &
    agents+=($!)
  done
  for node in 0 1; do
    wait "${agents[$node]}" || { cat "$out.$node.log" >&2; fail "$name"; return; }
  done
  expect_same "$name" "$out"
}

# Below those that the kernel gives to connections.
readonly port=$((20000 + RANDOM % 9000))
run "torchrun, two agents, c10d" c10d --rdzv-backend=c10d \
  --rdzv-endpoint=127.0.0.1:$port --rdzv-id=capstan
# Either agent may have rank 0.
cat "$work"/c10d.*.log >"$work/c10d.logs"
expect_text "$work/c10d.logs" "torchrun: "
run "torchrun, two agents, static" static --rdzv-backend=static \
  --master-addr=127.0.0.1 --master-port=$((port + 1))
end
