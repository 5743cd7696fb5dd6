#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bench/compare.py on a GPU of the H100 or H200 kind: bf16, sequences of 1,024,
# one rank; the shapes of SmolLM2-135M and 1.7B against PyTorch, eager and
# compiled, and LLMQ's 0.5B and 1.5B by our own figures. Further arguments go to
# compare.py (--repeats 3, --shapes smollm2-135m, --output FOLDER, ..).
#
# TRAINER is a trainer that was built elsewhere; by default it is built here.
# Its data is bazel-bin's text unless --text says otherwise. The peers run in
# python3 if that has torch, transformers and matplotlib, else in bench/.venv.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! ls /proc/driver/nvidia/gpus/* >/dev/null 2>&1 ||
  [[ "${CUDA_VISIBLE_DEVICES-unset}" =~ ^\ *(-.*)?$ ]]; then
  echo "no GPU: skipped"
  exit 0
fi

# One rank, one GPU.
first=${CUDA_VISIBLE_DEVICES-0}
export CUDA_VISIBLE_DEVICES=${first%%,*}

arguments=(--device cuda --repeats 3)
if python3 -c 'import torch, transformers, matplotlib' 2>/dev/null; then
  arguments+=(--python "$(command -v python3)")
  # What a trainer from elsewhere may miss here: LibTorch, CUDA's libraries.
  if [ -n "${TRAINER-}" ] &&
    ldd "$(dirname "$TRAINER")/libcapstan_core.so" | grep -q 'not found'; then
    site=$(python3 -c \
      'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))')
    for folder in "$site"/torch/lib "$site"/nvidia/*/lib; do
      LD_LIBRARY_PATH=${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$folder
    done
    export LD_LIBRARY_PATH
  fi
fi
if [ -n "${TRAINER-}" ]; then arguments+=(--trainer "$TRAINER"); fi

exec python3 bench/compare.py "${arguments[@]}" "$@"
