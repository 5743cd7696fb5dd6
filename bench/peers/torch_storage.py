#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.distributed.checkpoint over fsspec, in one process, beside bench/storage.cc.

    torch_storage.py ADDRESS MIB

Saves and loads random float32 tensors and prints MB/s. Needs s3fs for s3://.
"""

import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._fsspec_filesystem import (FsspecReader,
                                                             FsspecWriter)

TENSORS = 8


def main():
    address, mib = sys.argv[1], int(sys.argv[2])
    numel = mib * (1 << 20) // 4 // TENSORS
    state = {f"w{i}": torch.randn(numel) for i in range(TENSORS)}
    megabytes = mib * (1 << 20) / 1e6
    speeds = []
    for act in (lambda: dcp.save(state, storage_writer=FsspecWriter(address)),
                lambda: dcp.load(state, storage_reader=FsspecReader(address))):
        began = time.monotonic()
        act()
        speeds.append(megabytes / (time.monotonic() - began))
    print("{}: save {:.0f}, load {:.0f} MB/s".format(address, *speeds))


if __name__ == "__main__":
    main()
