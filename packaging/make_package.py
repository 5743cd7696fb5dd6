# SPDX-License-Identifier: Apache-2.0
"""make_package.py ARCHIVE PACKAGE: the folder of //:dist for a package manager.

PACKAGE is a wheel (.whl) for pip or a Debian package (.deb). Both hold the folder
as it is, below lib/capstan, and the command `capstan`, which is bin/trainer. The
package is the same, byte for byte, for the same archive.
"""
import base64
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile

SUMMARY = "A distributed trainer in C++: one binary, plugins, protobuf text configs"
LICENSE = "Apache-2.0 AND others, which lib/capstan/licenses lists"

# The scheme's data folder is the parent of its scripts' folder.
COMMAND = """#!/bin/sh
exec "$(dirname -- "$(readlink -f -- "$0")")/../lib/capstan/bin/trainer" "$@"
"""

EPOCH = "315532800"  # 1980, the first year of zip


def unpack(archive, into):
    """The archive's one folder, and its version."""
    subprocess.run(["tar", "--zstd", "-C", into, "-xf", archive], check=True)
    (folder,) = os.listdir(into)
    return os.path.join(into, folder), folder.split("-", 1)[1]


def files_below(folder):
    """Paths relative to the folder, in order."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder) for name in names)


class Wheel:
    """Files of a wheel, noted for RECORD while they are written."""

    def __init__(self, path, info):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED)
        self.info = info
        self.record = []

    def add(self, name, data, mode=0o644):
        entry = zipfile.ZipInfo(name)
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, data)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest())
        self.record.append(
            f"{name},sha256={digest.rstrip(b'=').decode()},{len(data)}")

    def close(self):
        name = f"{self.info}/RECORD"
        self.zip.writestr(zipfile.ZipInfo(name),
                          "\n".join(self.record + [f"{name},,", ""]))
        self.zip.close()


def make_wheel(folder, version, path):
    tag = "-".join(os.path.basename(path)[:-len(".whl")].split("-")[2:])
    stem = f"capstan-{version}"
    wheel = Wheel(path, f"{stem}.dist-info")
    for name in files_below(folder):
        with open(os.path.join(folder, name), "rb") as file:
            wheel.add(f"{stem}.data/data/lib/capstan/{name}", file.read(),
                      os.fstat(file.fileno()).st_mode & 0o755)
    wheel.add(f"{stem}.data/scripts/capstan", COMMAND.encode(), 0o755)
    wheel.add(f"{stem}.dist-info/METADATA",
              f"Metadata-Version: 2.1\nName: capstan\nVersion: {version}\n"
              f"Summary: {SUMMARY}\nLicense: {LICENSE}\n".encode())
    wheel.add(f"{stem}.dist-info/WHEEL",
              "Wheel-Version: 1.0\nGenerator: make_package.py\n"
              f"Root-Is-Purelib: false\nTag: {tag}\n".encode())
    wheel.close()


def make_deb(folder, version, path, root):
    for made in ["DEBIAN", "usr/bin", "usr/lib", "usr/share/doc/capstan"]:
        os.makedirs(os.path.join(root, made))
    os.rename(folder, os.path.join(root, "usr/lib/capstan"))
    os.symlink("../lib/capstan/bin/trainer", os.path.join(root, "usr/bin/capstan"))
    os.symlink("../../../lib/capstan/licenses/CONTENTS",
               os.path.join(root, "usr/share/doc/capstan/copyright"))
    with open(os.path.join(root, "DEBIAN/control"), "w", encoding="ascii") as file:
        # The floor of glibc.py. Whoever redistributes it maintains it.
        file.write(f"Package: capstan\nVersion: {version}\nArchitecture: amd64\n"
                   "Maintainer: Capstan\nSection: science\nPriority: optional\n"
                   f"Depends: libc6 (>= 2.31)\nDescription: {SUMMARY}\n")
    # Debian 11's dpkg doesn't read zstd.
    subprocess.run(["dpkg-deb", "-Zxz", "-z1", "--root-owner-group", "--build",
                    root, path], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})


def main(archive, path):
    with tempfile.TemporaryDirectory() as work:
        os.makedirs(f"{work}/folder")
        folder, version = unpack(archive, f"{work}/folder")
        if path.endswith(".whl"):
            make_wheel(folder, version, path)
        else:
            os.makedirs(f"{work}/root", mode=0o755)
            make_deb(folder, version, path, f"{work}/root")


if __name__ == "__main__":
    main(*sys.argv[1:])
