# SPDX-License-Identifier: Apache-2.0
"""packaging/glibc.py and elf.py on libraries of a few lines. Needs gcc."""
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)),
                                "../../packaging"))
# pylint: disable=wrong-import-position
import elf
import glibc

PTHREAD = """
#include <pthread.h>
#include <sys/stat.h>
int started(pthread_t* t, void* (*f)(void*)) {
  return pthread_create(t, 0, f, 0);
}
int size(const char* path) {
  struct stat s;
  return stat(path, &s) == 0 ? (int)s.st_size : -1;
}
"""


class GlibcTest(unittest.TestCase):
    def setUp(self):
        self._folder = tempfile.TemporaryDirectory()
        self.path = os.path.join(self._folder.name, "lib.so")

    def tearDown(self):
        self._folder.cleanup()

    def build(self, text, *flags):
        source = self.path + ".c"
        with open(source, "w", encoding="utf-8") as file:
            file.write("#define _GNU_SOURCE\n" + text)
        subprocess.run(["gcc", "-O1", "-fPIC", "-shared", "-o", self.path, source,
                        *flags], check=True)

    def lower(self, shim=("stat",)):
        library = elf.Elf(self.path, write=True)
        try:
            return glibc.lower(library, "lib.so", set(shim))
        finally:
            library.close()

    def objdump(self, option):
        return subprocess.run(["objdump", option, self.path], check=True, text=True,
                              stdout=subprocess.PIPE).stdout

    def size_of(self, text):
        """What the library's size() says, in a process of its own."""
        done = subprocess.run(
            [sys.executable, "-c",
             "import ctypes, os, sys;"
             "library = ctypes.CDLL(sys.argv[1], mode=os.RTLD_NOW);"
             "print(library.size(os.fsencode(sys.argv[2])))", self.path, text],
            check=True, stdout=subprocess.PIPE)
        return int(done.stdout)

    def test_moved_and_new_functions_lose_their_version(self):
        self.build(PTHREAD)
        self.assertIn("GLIBC_2.34", self.objdump("-T"))
        self.assertEqual(self.lower(), [glibc.SHIM, "libpthread.so.0"])
        text = self.objdump("-T") + self.objdump("-p")
        for version in ("GLIBC_2.33", "GLIBC_2.34"):
            self.assertNotIn(version, text)
        # __cxa_finalize's stays.
        self.assertIn("GLIBC_2.2.5", text)
        self.assertIn("pthread_create", text)
        # It still loads and works.
        self.assertEqual(self.size_of(b"/proc/self"), 0)

    def test_an_old_import_stays_as_it_is(self):
        self.build("#include <math.h>\ndouble f(double x) { return exp(x); }",
                   "-lm")
        before = self.objdump("-T")
        self.assertEqual(self.lower(), [])
        self.assertEqual(self.objdump("-T"), before)

    def test_an_unknown_function_is_named(self):
        self.build("#include <unistd.h>\nvoid f() { closefrom(3); }")
        with self.assertRaisesRegex(
                ValueError, "lib.so imports closefrom of GLIBC_2.34"):
            self.lower()

    def test_a_library_can_be_forgotten(self):
        import make_dist  # pylint: disable=import-outside-toplevel
        self.build("#include <string.h>\n#include <zlib.h>\n"
                   "int size(const char* x) { return (int)strlen(x); }\n"
                   "void f(gzFile x) { gzbuffer(x, 1); }", "-lz")
        self.assertIn("ZLIB_1.2.3.5", self.objdump("-p"))
        library = elf.Elf(self.path, write=True)
        make_dist.forget(library, "libz.so.1")
        library.close()
        subprocess.run(["patchelf", "--remove-needed", "libz.so.1", self.path],
                       check=True)
        self.assertNotIn("ZLIB", self.objdump("-p"))
        self.assertRegex(self.objdump("-T"), r" w .*\bgzbuffer\n")
        self.assertEqual(self.size_of(b"abc"), 3)


if __name__ == "__main__":
    unittest.main()
