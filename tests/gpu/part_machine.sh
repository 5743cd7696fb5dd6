# SPDX-License-Identifier: Apache-2.0
# What machine it is.
. tests/gpu/common.sh
uname -sr
lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\)|NUMA node\(s\))'
free -g 2>/dev/null | head -2
command -v nvidia-smi >/dev/null || skip "nvidia-smi isn't here"
nvidia-smi --query-gpu=name,memory.total,driver_version,clocks.max.sm,power.limit,mig.mode.current \
  --format=csv || wrong "nvidia-smi fails"
nvidia-smi topo -m
unjudged "facts, to be read"
