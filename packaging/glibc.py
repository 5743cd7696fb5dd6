# SPDX-License-Identifier: Apache-2.0
"""Lets libraries that were linked with a newer glibc run with 2.31.

glibc 2.34 took the functions of libpthread and libdl into libc, under a new
version; they are the same functions, and libc keeps the old names, too. An
import without a version takes whichever there is: the dynamic loader prefers
GLIBC_2.2.5's, then the default. (So a function that was another one in 2.2.5,
as pthread_cond_wait was, must not come into the table below.) What 2.31 doesn't
have at all, glibc_shim.cc brings.
"""
import re

FLOOR = (2, 31)

# Of glibc itself; anything else is carried.
LIBRARIES = frozenset([
    "ld-linux-x86-64.so.2", "libanl.so.1", "libc.so.6", "libdl.so.2",
    "libm.so.6", "libnsl.so.1", "libpthread.so.0", "libresolv.so.2",
    "librt.so.1", "libutil.so.1"])

SHIM = "libcapstan_glibc.so"

# Where they are in 2.31.
_MOVED = {
    "libc.so.6": ["__libc_start_main"],
    "libdl.so.2": [
        "dladdr", "dladdr1", "dlclose", "dlerror", "dlinfo", "dlopen", "dlsym",
        "dlvsym"],
    "libpthread.so.0": [
        "__pthread_key_create", "pthread_attr_setguardsize",
        "pthread_attr_setstacksize", "pthread_cond_clockwait",
        "pthread_condattr_setclock", "pthread_create", "pthread_detach",
        "pthread_getaffinity_np", "pthread_getspecific", "pthread_join",
        "pthread_key_create",
        "pthread_key_delete", "pthread_kill", "pthread_mutex_clocklock",
        "pthread_mutex_trylock", "pthread_mutexattr_destroy",
        "pthread_mutexattr_init", "pthread_mutexattr_settype", "pthread_once",
        "pthread_rwlock_destroy",
        "pthread_rwlock_init", "pthread_rwlock_rdlock",
        "pthread_rwlock_tryrdlock", "pthread_rwlock_trywrlock",
        "pthread_rwlock_unlock", "pthread_rwlock_wrlock", "pthread_setspecific",
        "pthread_setaffinity_np", "pthread_setattr_default_np",
        "pthread_setname_np", "pthread_sigmask",
        "sem_destroy", "sem_init",
        "sem_post", "sem_timedwait", "sem_trywait", "sem_wait"],
}
_HOME = {name: library for library, names in _MOVED.items() for name in names}


def _is_newer(version):
    if not re.fullmatch(r"GLIBC_[0-9.]+", version):
        return False
    return tuple(int(part) for part in version[6:].split(".")) > FLOOR


def lower(library, path, shim_exports):
    """Edits `library`, an open Elf; returns the libraries that it needs now.

    Raises ValueError if more than names and versions stands against FLOOR.
    """
    for version in library.required_versions():
        if version.startswith("GLIBC_ABI_"):
            raise ValueError(
                f"{path} is linked in a way that asks for {version}, and glibc "
                f"{FLOOR[0]}.{FLOOR[1]} doesn't know it: link it without (for "
                "GLIBC_ABI_DT_RELR, -Wl,-z,nopack-relative-relocs)")
    added = set()
    for imported in list(library.imports()):
        if not _is_newer(imported.version):
            continue
        name = imported.name
        if name in _HOME:
            added.add(_HOME[name])
        elif name in shim_exports:
            added.add(SHIM)
        else:
            raise ValueError(
                f"{path} imports {name} of {imported.version}, which glibc "
                f"{FLOOR[0]}.{FLOOR[1]} lacks: if that has it under an older "
                "version, list it in packaging/glibc.py, else write it in "
                "packaging/glibc_shim.cc")
        library.drop_version(imported)
    library.drop_requirements(lambda _, version: _is_newer(version))
    return sorted(added - set(library.needed()))
