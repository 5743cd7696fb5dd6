#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""imports_test.py SHIM LIBRARY..: none asks for more than glibc.FLOOR has.

As packaging/make_dist.py finds it, for our own libraries: a function of a newer
glibc is met by `bazel test`, and not first when somebody packs the folder.
"""
import os
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, "packaging")
# pylint: disable=wrong-import-position
import elf
import glibc


def main(shim_path, paths):
    shim = elf.Elf(shim_path)
    exports = shim.exports()
    shim.close()
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "library")
        for path in paths:
            shutil.copyfile(path, copy)
            library = elf.Elf(copy, write=True)
            try:
                glibc.lower(library, path, exports)
            except ValueError as error:
                errors.append(str(error))
            library.close()
    if errors:
        sys.exit("\n".join(errors))
    print(f"{len(paths)} libraries run with glibc "
          f"{'.'.join(map(str, glibc.FLOOR))}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
