// SPDX-License-Identifier: Apache-2.0
//
// libcapstan_glibc.so, part of the folder that //:dist makes: what the
// libraries in it import of glibc and 2.31 (Debian 11) doesn't have yet. It
// stands behind libc in the dynamic loader's order, so where libc has a
// function, this one isn't called. make_dist.py fails if a library needs more
// than this.
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

// On x86-64 the kernel's struct stat is glibc's.
int StatAt(int folder, const char* path, void* result, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, folder, path, result, flags));
}

struct Signal {
  int number;
  const char* name;
};

constexpr Signal kSignals[] = {
    {SIGABRT, "ABRT"},     {SIGALRM, "ALRM"},     {SIGBUS, "BUS"},
    {SIGCHLD, "CHLD"},     {SIGCONT, "CONT"},     {SIGFPE, "FPE"},
    {SIGHUP, "HUP"},       {SIGILL, "ILL"},       {SIGINT, "INT"},
    {SIGKILL, "KILL"},     {SIGPIPE, "PIPE"},     {SIGPOLL, "POLL"},
    {SIGPROF, "PROF"},     {SIGPWR, "PWR"},       {SIGQUIT, "QUIT"},
    {SIGSEGV, "SEGV"},     {SIGSTKFLT, "STKFLT"}, {SIGSTOP, "STOP"},
    {SIGSYS, "SYS"},       {SIGTERM, "TERM"},     {SIGTRAP, "TRAP"},
    {SIGTSTP, "TSTP"},     {SIGTTIN, "TTIN"},     {SIGTTOU, "TTOU"},
    {SIGURG, "URG"},       {SIGUSR1, "USR1"},     {SIGUSR2, "USR2"},
    {SIGVTALRM, "VTALRM"}, {SIGWINCH, "WINCH"},   {SIGXCPU, "XCPU"},
    {SIGXFSZ, "XFSZ"},
};

// Fills `result` if `pc` lies in one of the object's segments.
int FindIn(dl_phdr_info* object, size_t, void* argument) {
  auto* const result = static_cast<dl_find_object*>(argument);
  const uintptr_t pc = reinterpret_cast<uintptr_t>(result->dlfo_map_start);
  uintptr_t begin = UINTPTR_MAX;
  uintptr_t end = 0;
  uintptr_t frames = 0;
  bool found = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    const uintptr_t at = object->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) frames = at;
    if (header.p_type != PT_LOAD) continue;
    if (at < begin) begin = at;
    if (at + header.p_memsz > end) end = at + header.p_memsz;
    found |= pc >= at && pc - at < header.p_memsz;
  }
  // Without frames there is nothing to unwind by.
  if (!found || frames == 0) return 0;
  result->dlfo_map_start = reinterpret_cast<void*>(begin);
  result->dlfo_map_end = reinterpret_cast<void*>(end);
  result->dlfo_eh_frame = reinterpret_cast<void*>(frames);
  return 1;
}

}  // namespace

extern "C" {

// "There may be other threads", always: atomics are used where none are needed.
char __libc_single_threaded = 0;

int stat(const char* path, struct stat* result) {
  return StatAt(AT_FDCWD, path, result, 0);
}

int lstat(const char* path, struct stat* result) {
  return StatAt(AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}

int stat64(const char* path, struct stat64* result) {
  return StatAt(AT_FDCWD, path, result, 0);
}

int lstat64(const char* path, struct stat64* result) {
  return StatAt(AT_FDCWD, path, result, AT_SYMLINK_NOFOLLOW);
}

int fstatat(int folder, const char* path, struct stat* result, int flags) {
  return StatAt(folder, path, result, flags);
}

int fstatat64(int folder, const char* path, struct stat64* result, int flags) {
  return StatAt(folder, path, result, flags);
}

int fstat(int file, struct stat* result) {
  return static_cast<int>(syscall(SYS_fstat, file, result));
}

int fstat64(int file, struct stat64* result) {
  return static_cast<int>(syscall(SYS_fstat, file, result));
}

uint32_t arc4random() {
  uint32_t number = 0;
  // Waits for the kernel to have gathered randomness, once, soon after its
  // start.
  if (getrandom(&number, sizeof(number), 0) != sizeof(number)) abort();
  return number;
}

const char* sigabbrev_np(int number) {
  for (const Signal& signal : kSignals) {
    if (signal.number == number) return signal.name;
  }
  return nullptr;
}

// Which object's code `pc` lies in, for libgcc's unwinder; 0, or -1 if none.
// dlfo_link_map, which that doesn't read, is null.
int _dl_find_object(void* pc, dl_find_object* result) {
  *result = {};
  result->dlfo_map_start = pc;
  return dl_iterate_phdr(FindIn, result) == 1 ? 0 : -1;
}

}  // extern "C"
