# SPDX-License-Identifier: Apache-2.0
"""make_dist.py MANIFEST ARCHIVE: the trainer as a folder that runs anywhere.

The manifest (dist.bzl) says which files go where, and where libraries are to be
looked for. Of those, the ones that the files need come along, stripped; each
finds the others relative to itself; none asks for a glibc newer than glibc.FLOOR.
The archive is the same, byte for byte, for the same files.
"""
import csv
import fnmatch
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
# pylint: disable=wrong-import-position
import elf
import glibc

# The driver's, of the machine with the GPU.
DRIVER = frozenset(["libcuda.so.1", "libnvidia-ml.so.1"])

# Needed by a library for what no part of Capstan calls: HDF5's files in Amazon's
# S3, by way of 27 more libraries (TLS, Kerberos, LDAP). The imports stay, null.
UNUSED = {"libhdf5_serial.so": ["libcrypto.so.3", "libcurl.so.4"]}

# Opened at run time by NVIDIA's libraries, each by its name.
OPENED = {
    "libcudnn.so.9": ["libcudnn_*.so.9", "libnvrtc.so.*"],
    "libnvrtc.so.13": ["libnvrtc-builtins.so.*"],
}

# Compiled into ours.
HEADER_PACKAGES = ["libcli11-dev", "libgloo-dev", "libjs-chart.js",
                   "nlohmann-json3-dev"]

MTIME = 315532800  # 1980: tar warns of earlier ones

MIB = 1 << 20


def run(*command):
    done = subprocess.run(command, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def nvidia_folder(path):
    """"nvidia/cudnn/lib" of a library in NVIDIA's wheels; "" of another."""
    found = re.search(r"/(nvidia/[^/]+/lib)/[^/]+$", path)
    return found.group(1) if found else ""


class Folder:
    """The folder that becomes the archive."""

    def __init__(self, root, manifest):
        self.root = root
        self._available = {os.path.basename(path): path
                           for path in manifest["libraries"]}
        self._shim = manifest["shim"]
        # Libraries and programs: path in the folder: path of the original.
        self.binaries = {}

    def path(self, name):
        return os.path.join(self.root, name)

    def add(self, source, name):
        target = self.path(name)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            shutil.copytree(source, target, copy_function=shutil.copyfile)
            return
        shutil.copyfile(source, target)
        if name.split("/")[0] not in ("bin", "lib", "plugins"):
            return
        if elf.is_elf(source):
            self.binaries[name] = source

    def _needs(self, name):
        """The libraries that one in the folder needs, glibc's left out."""
        library = elf.Elf(self.path(name))
        needed = [n for n in library.needed()
                  if n not in glibc.LIBRARIES and n not in DRIVER
                  and n not in unused_by(name)]
        library.close()
        for pattern in OPENED.get(os.path.basename(name), []):
            needed += fnmatch.filter(self._available, pattern)
        return needed

    def add_libraries(self):
        """What is needed by what is there, and so on."""
        there = {os.path.basename(name) for name in self.binaries}
        todo = sorted(self.binaries)
        while todo:
            user = todo.pop()
            for needed in self._needs(user):
                if needed in there:
                    continue
                source = self._available.get(needed)
                if source is None:
                    sys.exit(
                        f"{user} needs {needed}, which isn't among what the "
                        "folder may carry: add it to \"carried\" in "
                        "third_party/system.BUILD")
                there.add(needed)
                name = os.path.join("lib", nvidia_folder(source),
                                    needed)
                self.add(source, name)
                todo.append(name)

    def adapt(self):
        """Strips, lowers the glibc that is asked for, sets RUNPATH."""
        shim = elf.Elf(self._shim)
        shim_exports = shim.exports()
        shim.close()
        carried = sorted({os.path.dirname(name) for name in self.binaries
                          if name.startswith("lib/")})
        self.add(self._shim, "lib/" + glibc.SHIM)
        for name in sorted(self.binaries):
            # NVIDIA's licence wants its files as they are.
            if not nvidia_folder("/" + name):
                self._adapt_one(name, shim_exports, carried)

    def _adapt_one(self, name, shim_exports, carried):
        path = self.path(name)
        run("strip", "--strip-unneeded", path)
        library = elf.Elf(path, write=True)
        changes = []
        for unused in unused_by(name):
            forget(library, unused)
            changes += ["--remove-needed", unused]
        for needed in glibc.lower(library, name, shim_exports):
            changes += ["--add-needed", needed]
        if name.startswith("bin/") and library.constructors() > 1:
            sys.exit(f"{name} has a static constructor, which glibc before 2.34 "
                     "doesn't run in programs linked with a later one: move it "
                     "into the core")
        library.close()
        own = os.path.dirname(name)
        places = [os.path.join("$ORIGIN", os.path.relpath(folder, own))
                  for folder in carried]
        places = [place[:-2] if place.endswith("/.") else place
                  for place in places]
        # Not in one go: 0.14 then writes a name into the other's place.
        if changes:
            run("patchelf", *changes, path)
        run("patchelf", "--set-rpath", ":".join(places), path)

    def size(self):
        return sum(os.path.getsize(os.path.join(folder, name))
                   for folder, _, names in os.walk(self.root) for name in names)


def unused_by(name):
    return [unused for beginning, libraries in UNUSED.items()
            if os.path.basename(name).startswith(beginning)
            for unused in libraries]


def forget(library, unused):
    """Makes an open library do without another one, `unused`."""
    for imported in list(library.imports()):
        if imported.library == unused:
            library.drop_version(imported)
            library.make_weak(imported)
    library.drop_requirements(lambda needed, _: needed == unused)


def version_of(package):
    return run("dpkg-query", "-W", "-f=${Version}\n", package).split("\n")[0]


def package_of(path):
    """Debian's package of a file, with its version."""
    real = os.path.realpath(path)
    # Packages may still list what is in /usr/lib below /lib.
    for name in (real, real[len("/usr"):]):
        done = subprocess.run(["dpkg", "-S", name], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, check=False)
        if done.returncode == 0:
            package = done.stdout.split(":")[0]
            return package, version_of(package)
    sys.exit(f"no Debian package has {real}: its licence isn't known")


class Wheels:
    """What is whose, by the lists of files that wheels have."""

    def __init__(self, files):
        self._files = files
        self._wheel_of = {}
        for path in files:
            if not path.endswith(".dist-info/RECORD"):
                continue
            wheel = path.split("/")[-2][:-len(".dist-info")]
            with open(path, encoding="utf-8") as file:
                for row in csv.reader(file):
                    self._wheel_of[row[0]] = wheel

    def wheel_of(self, path):
        """Of a library; "" if there is no such wheel."""
        return self._wheel_of.get(path.split("/site/")[-1], "")

    def licenses(self, wheel):
        return [path for path in self._files
                if not path.endswith("/RECORD") and self.wheel_of(path) == wheel]


def add_licenses(folder, wheel_files):
    """Of everything carried: licenses/, with a list of what is what's."""
    wheels = Wheels(wheel_files)
    packages = set(HEADER_PACKAGES)
    used = set()
    lines = []
    for name, source in sorted(folder.binaries.items()):
        if "/site/" in source:
            wheel = wheels.wheel_of(source)
            used.add(wheel)
            lines.append(f"{name}\t{wheel.replace('-', ' ')}, Python wheel\n")
        elif os.path.realpath(source).startswith("/usr/"):
            package, version = package_of(source)
            packages.add(package)
            lines.append(f"{name}\t{package} {version}, Debian\n")
    for package in sorted(packages):
        folder.add(f"/usr/share/doc/{package}/copyright", f"licenses/{package}")
    for wheel in sorted(used):
        texts = wheels.licenses(wheel)
        if not texts:
            sys.exit("the licences of LibTorch's wheels aren't in @libtorch: "
                     "`bazel sync --only=libtorch` fetches it anew")
        for text in texts:
            folder.add(text, f"licenses/{wheel}/{os.path.basename(text)}")
    lines += [f"headers\t{package} {version_of(package)}, Debian\n"
              for package in HEADER_PACKAGES]
    with open(folder.path("licenses/CONTENTS"), "w", encoding="utf-8") as file:
        file.writelines(lines)
    add_common_licenses(folder)


def add_common_licenses(folder):
    """Texts that Debian's copyright files only point to."""
    named = set()
    for name in os.listdir(folder.path("licenses")):
        path = folder.path("licenses/" + name)
        if os.path.isfile(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                named.update(re.findall(
                    r"/usr/share/common-licenses/([A-Za-z0-9.-]*[A-Za-z0-9])",
                    file.read()))
    for name in sorted(named):
        source = "/usr/share/common-licenses/" + name
        if os.path.exists(source):
            folder.add(source, "licenses/common-licenses/" + name)


def normal(info, path):
    info.uid = info.gid = 0
    info.uname = info.gname = "root"
    info.mtime = MTIME
    if info.isdir():
        info.mode = 0o755
    else:
        with open(path, "rb") as file:
            start = file.read(4)
        program = "/bin/" in info.name or start[:2] == b"#!"
        info.mode = 0o755 if program else 0o644
    return info


def write_archive(root, name, archive):
    """A .tar.zst, whose files are below `name`."""
    paths = []
    for folder, folders, files in os.walk(root):
        paths += [os.path.join(folder, entry) for entry in folders + files]
    with open(archive, "wb") as out, subprocess.Popen(
            ["zstd", "-q", "-T0", "-12"], stdin=subprocess.PIPE,
            stdout=out) as pack:
        with tarfile.open(fileobj=pack.stdin, mode="w|", bufsize=MIB,
                          format=tarfile.GNU_FORMAT) as tar:
            for path in [root] + sorted(paths):
                inside = os.path.normpath(
                    os.path.join(name, os.path.relpath(path, root)))
                info = normal(tar.gettarinfo(path, inside), path)
                if info.isdir():
                    tar.addfile(info)
                    continue
                with open(path, "rb") as file:
                    tar.addfile(info, file)
        pack.stdin.close()
    if pack.returncode != 0:
        sys.exit(f"zstd failed ({pack.returncode})")


def main(manifest_path, archive):
    for tool, package in [("patchelf", "patchelf"), ("strip", "binutils"),
                          ("zstd", "zstd"), ("dpkg-query", "dpkg")]:
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is missing: install Debian's package {package}, or "
                     "build with ./bazelw, which does")
    with open(manifest_path, encoding="utf-8") as file:
        manifest = json.load(file)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(archive)) as root:
        folder = Folder(root, manifest)
        for source, name in manifest["copies"]:
            folder.add(source, name)
        folder.add_libraries()
        before = folder.size()
        try:
            folder.adapt()
        except ValueError as error:
            sys.exit(f"{manifest['folder']}: {error}")
        add_licenses(folder, manifest["licenses"])
        write_archive(root, manifest["folder"], archive)
        print(f"{os.path.basename(archive)}: "
              f"{os.path.getsize(archive) / MIB:.0f} MiB; unpacked "
              f"{folder.size() / MIB:.0f} MiB, {before / MIB:.0f} MiB with "
              "symbols")


if __name__ == "__main__":
    main(*sys.argv[1:])
