#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Says "yes" if this machine has a GPU for CUDA, else "no": the driver's module,
# its device (also in a container that CDI or docker gave one), or WSL2's device
# with the driver's library that Windows adds.
if [ -e /proc/driver/nvidia/version ] || [ -e /dev/nvidiactl ] ||
  { [ -e /dev/dxg ] && [ -e /usr/lib/wsl/lib/libcuda.so.1 ]; }; then
  echo yes
else
  echo no
fi
