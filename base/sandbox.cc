// SPDX-License-Identifier: Apache-2.0
#include "base/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/landlock.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <initializer_list>

namespace capstan {
namespace {

#if defined(__x86_64__)
constexpr uint32_t kArch = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArch = AUDIT_ARCH_AARCH64;
#else
constexpr uint32_t kArch = 0;
#endif

// Of x32's calls, other numbers for the same.
constexpr uint32_t kX32Bit = 0x40000000;

// Later than Debian 12's headers, or of newer kernels.
constexpr uint64_t kTruncate = uint64_t{1} << 14;  // ABI 3

// Calls from this number on, of Linux 6.6 and later, may do what the list below
// denies (fchmodat2, 452); C libraries take the older ones then.
constexpr uint32_t kUnknown = 452;

// What a program may not do at all; it fails with EPERM. By topic: network,
// and io_uring, which can do all of this unseen; other processes; files'
// owners, permissions and times, which Landlock doesn't know; memory that no
// limit counts; what processes of a user share; the machine.
constexpr int kDenied[] = {
    SYS_socket,
    SYS_connect,
    SYS_bind,
    SYS_listen,
    SYS_io_uring_setup,
    SYS_io_uring_enter,
    SYS_io_uring_register,
#ifdef SYS_fork
    SYS_mknod,
    SYS_fork,
    SYS_vfork,
    SYS_chmod,
    SYS_chown,
    SYS_lchown,
    SYS_utime,
    SYS_utimes,
    SYS_futimesat,
#endif
    SYS_utimensat,
    SYS_memfd_create,
    SYS_ptrace,
    SYS_process_vm_readv,
    SYS_process_vm_writev,
    SYS_tkill,
    SYS_rt_sigqueueinfo,
    SYS_rt_tgsigqueueinfo,
    SYS_pidfd_open,
    SYS_pidfd_send_signal,
    SYS_pidfd_getfd,
    SYS_kcmp,
    SYS_setpriority,
    SYS_ioprio_set,
    SYS_sched_setparam,
    SYS_sched_setscheduler,
    SYS_sched_setattr,
    SYS_sched_setaffinity,
    SYS_migrate_pages,
    SYS_move_pages,
    SYS_process_madvise,
    SYS_setrlimit,
    SYS_fchmod,
    SYS_fchmodat,
    SYS_fchown,
    SYS_fchownat,
    SYS_setxattr,
    SYS_lsetxattr,
    SYS_fsetxattr,
    SYS_removexattr,
    SYS_lremovexattr,
    SYS_fremovexattr,
    SYS_shmget,
    SYS_shmctl,
    SYS_msgget,
    SYS_msgctl,
    SYS_semget,
    SYS_semctl,
    SYS_mq_open,
    SYS_mq_unlink,
    SYS_keyctl,
    SYS_add_key,
    SYS_request_key,
    SYS_mount,
    SYS_umount2,
    SYS_pivot_root,
    SYS_chroot,
    SYS_unshare,
    SYS_setns,
    SYS_bpf,
    SYS_perf_event_open,
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_adjtimex,
    SYS_clock_adjtime,
    SYS_sethostname,
    SYS_setdomainname,
    SYS_quotactl,
    SYS_acct,
    SYS_syslog,
    SYS_open_by_handle_at,
    SYS_fanotify_init,
    SYS_userfaultfd,
    SYS_mknodat,
};

constexpr uint32_t kPermissionDenied = SECCOMP_RET_ERRNO | EPERM;

sock_filter Load(size_t offset) {
  return BPF_STMT(BPF_LD | BPF_W | BPF_ABS, static_cast<uint32_t>(offset));
}
sock_filter Return(uint32_t what) { return BPF_STMT(BPF_RET | BPF_K, what); }
// Skips `otherwise` instructions unless the loaded word is `value`.
sock_filter Unless(uint32_t value, uint8_t otherwise) {
  return BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, otherwise);
}

sock_filter And(uint32_t bits) {
  return BPF_STMT(BPF_ALU | BPF_AND | BPF_K, bits);
}

constexpr size_t kNumber = offsetof(seccomp_data, nr);
// The lower half; the upper one is ignored by calls that take an int.
constexpr size_t Argument(int i) {
  return offsetof(seccomp_data, args) + 8 * i;
}

// The system calls' filter. *own_pid: where the process's own number belongs.
std::vector<sock_filter> Filter(std::vector<size_t>* own_pid) {
  std::vector<sock_filter> code = {
      Load(offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArch, 1, 0),
      Return(SECCOMP_RET_KILL_PROCESS),
      Load(kNumber),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kX32Bit, 0, 1),
      Return(SECCOMP_RET_KILL_PROCESS),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kUnknown, 0, 1),
      Return(SECCOMP_RET_ERRNO | ENOSYS),
  };
  const auto add = [&code](std::initializer_list<sock_filter> more) {
    code.insert(code.end(), more);
  };
  for (const int call : kDenied) {
    add({Unless(static_cast<uint32_t>(call), 1), Return(kPermissionDenied)});
  }
  // Its flags are in memory, where no filter sees them; C libraries take clone
  // then.
  add({Unless(SYS_clone3, 1), Return(SECCOMP_RET_ERRNO | ENOSYS)});
  // Threads are no processes.
  add({Unless(SYS_clone, 4), Load(Argument(0)),
       BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, CLONE_THREAD, 0, 1),
       Return(SECCOMP_RET_ALLOW), Return(kPermissionDenied)});
  // It is to die with its parent.
  add({Unless(SYS_prctl, 4), Load(Argument(0)), Unless(PR_SET_PDEATHSIG, 1),
       Return(kPermissionDenied), Return(SECCOMP_RET_ALLOW)});
  for (const int call : {SYS_kill, SYS_tgkill}) {
    own_pid->push_back(code.size() + 2);
    add({Unless(static_cast<uint32_t>(call), 4), Load(Argument(0)),
         Unless(0, 1), Return(SECCOMP_RET_ALLOW), Return(kPermissionDenied)});
  }
  // A folder that its owner can't look into could be neither counted nor
  // removed: all of these bits must be set, or none of a mask's.
  const auto owner = [&add](int call, int argument, uint32_t bits) {
    add({Unless(static_cast<uint32_t>(call), 5), Load(Argument(argument)),
         And(S_IRWXU), Unless(bits, 1), Return(SECCOMP_RET_ALLOW),
         Return(kPermissionDenied)});
  };
#ifdef SYS_mkdir
  owner(SYS_mkdir, 1, S_IRWXU);
#endif
  owner(SYS_mkdirat, 2, S_IRWXU);
  owner(SYS_umask, 0, 0);
  // 0 is the process itself.
  own_pid->push_back(code.size() + 3);
  add({Unless(SYS_prlimit64, 5), Load(Argument(0)),
       BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0, 1, 0), Unless(0, 1),
       Return(SECCOMP_RET_ALLOW), Return(kPermissionDenied)});
  add({Return(SECCOMP_RET_ALLOW)});
  return code;
}

// A set of rules by which only what is below `folder` is written; -1 if the
// kernel has no Landlock.
int WriteRules(const std::string& folder) {
  const int64_t abi = syscall(SYS_landlock_create_ruleset, nullptr, 0,
                              LANDLOCK_CREATE_RULESET_VERSION);
  if (abi < 1) return -1;
  landlock_ruleset_attr all = {};
  all.handled_access_fs =
      LANDLOCK_ACCESS_FS_WRITE_FILE | LANDLOCK_ACCESS_FS_REMOVE_DIR |
      LANDLOCK_ACCESS_FS_REMOVE_FILE | LANDLOCK_ACCESS_FS_MAKE_CHAR |
      LANDLOCK_ACCESS_FS_MAKE_DIR | LANDLOCK_ACCESS_FS_MAKE_REG |
      LANDLOCK_ACCESS_FS_MAKE_SOCK | LANDLOCK_ACCESS_FS_MAKE_FIFO |
      LANDLOCK_ACCESS_FS_MAKE_BLOCK | LANDLOCK_ACCESS_FS_MAKE_SYM;
  if (abi >= 2) all.handled_access_fs |= LANDLOCK_ACCESS_FS_REFER;
  if (abi >= 3) all.handled_access_fs |= kTruncate;
  const int rules = static_cast<int>(
      syscall(SYS_landlock_create_ruleset, &all, sizeof(all), 0));
  if (rules < 0) return -1;
  const auto allow = [rules](const char* path, uint64_t what) {
    landlock_path_beneath_attr rule = {};
    rule.allowed_access = what;
    rule.parent_fd = open(path, O_PATH | O_CLOEXEC);
    if (rule.parent_fd < 0) return;
    syscall(SYS_landlock_add_rule, rules, LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
    close(rule.parent_fd);
  };
  allow(folder.c_str(), all.handled_access_fs);
  allow("/dev/null", all.handled_access_fs & (LANDLOCK_ACCESS_FS_WRITE_FILE |
                                              (abi >= 3 ? kTruncate : 0)));
  return rules;
}

bool Limit(int what, int64_t most, int64_t beyond = 0) {
  const auto resource = static_cast<__rlimit_resource>(what);
  rlimit limit;
  if (getrlimit(resource, &limit) != 0) return false;
  limit.rlim_cur = std::min(limit.rlim_cur, static_cast<rlim_t>(most));
  limit.rlim_max = std::min(limit.rlim_max, static_cast<rlim_t>(most + beyond));
  return setrlimit(resource, &limit) == 0;
}

}  // namespace

SandboxDoor::SandboxDoor(const Sandbox& sandbox) : sandbox_(sandbox) {
  if (kArch == 0) {
    status_ = absl::UnimplementedError(
        "programs can't be kept in a sandbox on this processor");
    return;
  }
  filter_ = Filter(&own_pid_);
  rules_ = WriteRules(sandbox_.folder);
}

SandboxDoor::~SandboxDoor() {
  if (rules_ >= 0) close(rules_);
}

bool SandboxDoor::Enter() {
  if (chdir(sandbox_.folder.c_str()) != 0 || setsid() < 0) return false;
  umask(077);
  if (!Limit(RLIMIT_CORE, 0) || !Limit(RLIMIT_AS, sandbox_.bytes) ||
      !Limit(RLIMIT_CPU, sandbox_.cpu_seconds, 1) ||
      !Limit(RLIMIT_FSIZE, sandbox_.file_bytes) ||
      !Limit(RLIMIT_NOFILE, sandbox_.files)) {
    return false;
  }
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  if (rules_ >= 0 && syscall(SYS_landlock_restrict_self, rules_, 0) != 0) {
    return false;
  }
  for (const size_t place : own_pid_) {
    filter_[place].k = static_cast<uint32_t>(getpid());
  }
  const sock_fprog program = {static_cast<uint16_t>(filter_.size()),
                              filter_.data()};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

}  // namespace capstan
