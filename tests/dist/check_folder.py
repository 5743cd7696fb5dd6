# SPDX-License-Identifier: Apache-2.0
"""check_folder.py FOLDER: an unpacked //:dist needs nothing from outside.

Reads objdump's words, independently of packaging/elf.py: walks over what each
program and plugin needs, as the dynamic loader does, and looks at the glibc that
is asked for.
"""
import os
import re
import subprocess
import sys

GLIBC = {"ld-linux-x86-64.so.2", "libc.so.6", "libdl.so.2", "libm.so.6",
         "libpthread.so.0", "libresolv.so.2", "librt.so.1", "libutil.so.1"}
DRIVER = {"libcuda.so.1", "libnvidia-ml.so.1"}
OLDEST = (2, 31)


class Library:
    def __init__(self, path):
        self.path = path
        text = subprocess.run(["objdump", "-p", path], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        self.needed = re.findall(r"^ +NEEDED +(\S+)$", text, re.MULTILINE)
        self.folders = [
            folder.replace("${ORIGIN}", "$ORIGIN")
            for paths in re.findall(r"^ +(?:RUNPATH|RPATH) +(\S+)$", text,
                                    re.MULTILINE)
            for folder in paths.split(":")]
        references = text.split("Version References:")[-1]
        self.glibc = {tuple(int(n) for n in version.split("."))
                      for version in re.findall(r"GLIBC_([0-9.]+)$", references,
                                                re.MULTILINE)}


def main(root):
    root = os.path.realpath(root)
    problems = []
    libraries = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = os.path.join(folder, name)
            if os.path.islink(path):
                problems.append(f"{path} is a link")
            if os.path.relpath(path, root).split("/")[0] not in (
                    "bin", "lib", "plugins"):
                continue
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    libraries[path] = Library(path)

    def check_alone(library):
        name = os.path.relpath(library.path, root)
        for folder in library.folders:
            # The current folder; harmless in a library that needs only what is
            # loaded already, and this one is NVIDIA's to change.
            if not folder and name.startswith("lib/nvidia/cusparselt/"):
                continue
            if folder.split("/")[0] != "$ORIGIN":
                problems.append(f"{name}: looks for libraries in {folder}")
                continue
            place = os.path.normpath(folder.replace(
                "$ORIGIN", os.path.dirname(library.path)))
            if not (place + "/").startswith(root + "/"):
                problems.append(f"{name}: looks outside, in {folder}")
        for version in sorted(library.glibc):
            if version > OLDEST:
                problems.append(f"{name}: asks for glibc {version}")

    def load(path, loaded):
        """The loader finds a library that is loaded by its name alone."""
        todo = [path]
        while todo:
            library = libraries[todo.pop(0)]
            loaded.add(os.path.basename(library.path))
            for needed in library.needed:
                if needed in GLIBC or needed in DRIVER or needed in loaded:
                    continue
                places = [os.path.normpath(os.path.join(
                    folder.replace("$ORIGIN", os.path.dirname(library.path)),
                    needed)) for folder in library.folders]
                found = [place for place in places if place in libraries]
                if found:
                    todo.append(found[0])
                    loaded.add(needed)
                else:
                    problems.append(f"{os.path.relpath(library.path, root)}: "
                                    f"{needed} isn't found")
        return loaded

    for library in libraries.values():
        check_alone(library)
    process = load(os.path.join(root, "bin/trainer"), set())
    load(os.path.join(root, "lib/libcapstan_core.so"), process)
    # What is opened at run time, each in a process of its own.
    for path in sorted(libraries):
        if os.path.basename(path) not in process:
            load(path, set(process))
    for problem in sorted(set(problems)):
        print(problem)
    if problems or len(libraries) < 60:
        sys.exit(f"FAILED: {len(problems)} problems in {len(libraries)} files")
    print(f"{len(libraries)} programs and libraries need nothing but glibc, "
          f"{'.'.join(map(str, OLDEST))} or later")


main(*sys.argv[1:])
