# SPDX-License-Identifier: Apache-2.0
"""Lays C++ headers into one text file, in an order that never changes.

concat_headers.py OUTPUT SHA256 FILE..

Files are sorted by the hash of their path below include/, so that the end of
the text (held back for validation) is like the rest of it. Each file is
preceded by a comment with its path. A result other than SHA256 is an error:
the default run's loss curve is the same everywhere.
"""

import hashlib
import sys


def main():
    output, want, files = sys.argv[1], sys.argv[2], sys.argv[3:]
    named = {}
    for file in files:
        name = file.rpartition("/include/")[2] or file
        if name.startswith(("c10/", "torch/")):
            named[name] = file
    order = sorted(named, key=lambda n: hashlib.sha256(n.encode()).digest())
    parts = []
    for name in order:
        with open(named[name], "rb") as f:
            text = f.read().replace(b"\r\n", b"\n").strip(b"\n")
        parts.append(b"// " + name.encode() + b"\n" + text + b"\n\n")
    data = b"".join(parts)
    got = hashlib.sha256(data).hexdigest()
    if got != want:
        sys.exit("libtorch_headers.txt: sha256 is %s, not %s as pinned in "
                 "datasets/samples/BUILD: another LibTorch?" % (got, want))
    with open(output, "wb") as f:
        f.write(data)


main()
