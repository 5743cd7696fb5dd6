#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# run.sh COMMAND ..: runs it on stand-in CUDA devices (README.md), which the
# variable CAPSTAN_STANDIN describes. The libraries are those beside this file
# in Bazel's runfiles, or in the folder CAPSTAN_STANDIN_LIBRARIES.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
libraries=${CAPSTAN_STANDIN_LIBRARIES:-$here/lib}
if [ ! -e "$libraries/libcudart.so.13" ]; then
  echo "run.sh: no stand-in libraries in '$libraries'; build" \
    "//testing/standin:libraries, or name their folder in" \
    "CAPSTAN_STANDIN_LIBRARIES" >&2
  exit 2
fi
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
LD_PRELOAD=$preload${LD_PRELOAD:+:$LD_PRELOAD} exec "$@"
