#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh COMMAND ..: runs it on stand-in CUDA devices (README.md), which the
# variable CAPSTAN_STANDIN describes. The libraries are those in the folder
# CAPSTAN_STANDIN_LIBRARIES, in Bazel's runfiles, or in bazel-bin.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# As a test it has another name and folder: then the current one is the root.
for libraries in "${CAPSTAN_STANDIN_LIBRARIES:-$here/lib}" \
  "$PWD/testing/standin/lib" "$here/../../bazel-bin/testing/standin/lib"; do
  [ ! -e "$libraries/libcudart.so.13" ] || break
done
if [ ! -e "$libraries/libcudart.so.13" ]; then
  echo "run.sh: no stand-in libraries; build //testing/standin:libraries, or" \
    "name their folder in CAPSTAN_STANDIN_LIBRARIES" >&2
  exit 2
fi
libraries=$(cd "$libraries" && pwd)
# LibTorch asks for these names; what is already loaded under them is taken.
preload=$libraries/libcudart.so.13
for library in "$libraries"/lib*.so.[0-9]*; do
  case $library in
    */libcudart.so.13) ;;
    *) preload=$preload:$library ;;
  esac
done
export NVTX_INJECTION64_PATH=$libraries/libcudart.so.13
export CAPSTAN_STANDIN=${CAPSTAN_STANDIN-}
kernels=$libraries/libcapstan_kernels_emulated.so
if [ -z "${CAPSTAN_CUDA_KERNELS-}" ] && [ -e "$kernels" ]; then
  export CAPSTAN_CUDA_KERNELS=$kernels
fi
# Ranks and devices share few cores: OpenMP's threads don't wait by spinning.
export GOMP_SPINCOUNT=${GOMP_SPINCOUNT-0}
LD_PRELOAD=$preload${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"
