# SPDX-License-Identifier: Apache-2.0
"""Reads a 64-bit little-endian ELF library, and edits its imports in place.

What needs room (RUNPATH, another NEEDED) is patchelf's; this is the rest, which
patchelf can't do: an import without its version, or weak, and the requirement
of the version taken out. Formats: the System V ABI; for symbol versions the
Linux Standard Base, "Symbol Versioning".
"""
import mmap
import struct

_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_DYNSYM = 11
_DT_NEEDED, _DT_STRTAB, _DT_SYMTAB, _DT_SONAME = 1, 5, 6, 14
_DT_RPATH, _DT_INIT_ARRAYSZ, _DT_RUNPATH = 15, 27, 29
_DT_VERSYM, _DT_VERNEED, _DT_VERNEEDNUM = 0x6FFFFFF0, 0x6FFFFFFE, 0x6FFFFFFF
_GLOBAL = 1  # the version index of "no version"
_WEAK = 2    # a symbol's binding


def is_elf(path):
    with open(path, "rb") as file:
        return file.read(6) == b"\x7fELF\x02\x01"


class Import:
    """An undefined symbol, and where its version is required."""

    def __init__(self, index, name, weak, library, version):
        self.index = index
        self.name = name
        self.weak = weak
        self.library = library  # "libc.so.6"; "" if it has no version
        self.version = version  # "GLIBC_2.34"; "" likewise


class Elf:
    """A library of a file; with `write` the changes go there."""

    def __init__(self, path, write=False):
        with open(path, "r+b" if write else "rb") as file:
            self._data = mmap.mmap(
                file.fileno(), 0,
                access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
        self._read_headers()
        self._dynamic = list(self._read_dynamic())
        self._strings = self._offset(self._value(_DT_STRTAB))
        self._symbols = self._offset(self._value(_DT_SYMTAB))
        versions = self._value(_DT_VERSYM)
        self._versions = self._offset(versions) if versions else None

    def close(self):
        self._data.close()

    def _unpack(self, form, offset):
        return struct.unpack_from("<" + form, self._data, offset)

    def _pack(self, form, offset, *values):
        struct.pack_into("<" + form, self._data, offset, *values)

    def _read_headers(self):
        (segments, sections) = self._unpack("QQ", 32)
        (size, count, section_size, section_count) = self._unpack("HHHH", 54)
        self._loads = []
        self._dynamic_at = (0, 0)
        for i in range(count):
            (kind, _, offset, address, _, in_file) = self._unpack(
                "IIQQQQ", segments + i * size)
            if kind == _PT_LOAD:
                self._loads.append((address, offset, in_file))
            elif kind == _PT_DYNAMIC:
                self._dynamic_at = (offset, in_file)
        self._section_headers = [
            sections + i * section_size for i in range(section_count)]
        self._symbol_count = 0
        for at in self._section_headers:
            (_, kind, _, _, _, in_file) = self._unpack("IIQQQQ", at)
            if kind == _SHT_DYNSYM:
                self._symbol_count = in_file // 24

    def _read_dynamic(self):
        """(tag, value, where the value is)"""
        (offset, size) = self._dynamic_at
        for at in range(offset, offset + size, 16):
            (tag, value) = self._unpack("qQ", at)
            if tag == 0:
                return
            yield tag, value, at + 8

    def _value(self, tag):
        return next((v for t, v, _ in self._dynamic if t == tag), 0)

    def _offset(self, address):
        for begin, offset, size in self._loads:
            if begin <= address < begin + size:
                return address - begin + offset
        raise ValueError(f"no segment holds the address {address:#x}")

    def _string(self, index):
        begin = self._strings + index
        return self._data[begin:self._data.find(b"\0", begin)].decode()

    def _named(self, *tags):
        return [self._string(v) for t, v, _ in self._dynamic if t in tags]

    def needed(self):
        return self._named(_DT_NEEDED)

    def soname(self):
        return "".join(self._named(_DT_SONAME))

    def run_path(self):
        """The folders of RUNPATH or the older RPATH, as they are written."""
        return [folder for path in self._named(_DT_RPATH, _DT_RUNPATH)
                for folder in path.split(":")]

    def constructors(self):
        """How many functions run before main or with dlopen."""
        return self._value(_DT_INIT_ARRAYSZ) // 8

    def _required(self):
        """[[library, where, [[version index, name, where], ..]], ..]"""
        required = []
        at = self._value(_DT_VERNEED)
        if not at:
            return required
        at = self._offset(at)
        for _ in range(self._value(_DT_VERNEEDNUM)):
            (_, count, file, first, step) = self._unpack("HHIII", at)
            versions = []
            where = at + first
            for _ in range(count):
                (_, _, index, name, next_one) = self._unpack("IHHII", where)
                versions.append([index & 0x7FFF, self._string(name), where])
                where += next_one
            required.append([self._string(file), at, versions])
            at += step
        return required

    def required_versions(self):
        return {version for _, _, versions in self._required()
                for _, version, _ in versions}

    def imports(self):
        by_index = {index: (library, version)
                    for library, _, versions in self._required()
                    for index, version, _ in versions}
        for i in range(1, self._symbol_count):
            (name, info, _, section) = self._unpack(
                "IBBH", self._symbols + 24 * i)
            if section != 0 or name == 0:
                continue
            index = 0
            if self._versions is not None:
                (index,) = self._unpack("H", self._versions + 2 * i)
            library, version = by_index.get(index & 0x7FFF, ("", ""))
            yield Import(i, self._string(name), info >> 4 == _WEAK, library,
                         version)

    def exports(self):
        names = set()
        for i in range(1, self._symbol_count):
            (name, info, _, section) = self._unpack(
                "IBBH", self._symbols + 24 * i)
            if section != 0 and info >> 4 != 0:
                names.add(self._string(name))
        return names

    def drop_version(self, imported):
        """The symbol of whichever library comes first in the loader's order."""
        self._pack("H", self._versions + 2 * imported.index, _GLOBAL)

    def make_weak(self, imported):
        """Null if no library has it."""
        at = self._symbols + 24 * imported.index + 4
        (info,) = self._unpack("B", at)
        self._pack("B", at, _WEAK << 4 | info & 15)

    def drop_requirements(self, drop):
        """Those of which drop(library, version) is true; no import may use them.

        The entries stay where they are, but nothing points to them.
        """
        required = self._required()
        kept = []
        for library, at, versions in required:
            left = [v for v in versions if not drop(library, v[1])]
            if not left:
                continue
            kept.append(at)
            self._pack("H", at + 2, len(left))
            self._pack("I", at + 8, left[0][2] - at)
            for (_, _, where), following in zip(left, left[1:] + [None]):
                self._pack("I", where + 12,
                           following[2] - where if following else 0)
        for at, following in zip(kept, kept[1:] + [None]):
            self._pack("I", at + 12, following - at if following else 0)
        if not required or len(kept) == len(required):
            return
        if not kept:
            raise ValueError("it requires no version of another library")
        self._move_requirements(kept[0] - required[0][1], len(kept))

    def _move_requirements(self, by, count):
        address = self._value(_DT_VERNEED)
        for tag, _, at in self._dynamic:
            if tag == _DT_VERNEED:
                self._pack("Q", at, address + by)
            elif tag == _DT_VERNEEDNUM:
                self._pack("Q", at, count)
        # For readelf, which looks at the section.
        for at in self._section_headers:
            (_, _, _, begin, offset, size, _, _) = self._unpack("IIQQQQII", at)
            if begin == address:
                self._pack("QQQ", at + 16, address + by, offset + by, size - by)
                self._pack("I", at + 44, count)
        self._dynamic = list(self._read_dynamic())
