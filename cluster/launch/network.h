// SPDX-License-Identifier: Apache-2.0
//
// Addresses of this host and of others, and sockets between them. All sockets
// made here are non-blocking and are closed by exec.
#ifndef CAPSTAN_CLUSTER_LAUNCH_NETWORK_H_
#define CAPSTAN_CLUSTER_LAUNCH_NETWORK_H_

#include <sys/socket.h>

#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

using MeetingClock = std::chrono::steady_clock;
using Deadline = MeetingClock::time_point;

// For poll: milliseconds until `deadline`, rounded up; 0 once it has passed and
// at most an hour.
int MillisecondsUntil(Deadline deadline);

// Returns how long to pause before the next attempt at something that has
// failed for `elapsed`: about a tenth of that, from 1 ms to `most`. Random, so
// that a thousand ranks don't retry at once.
std::chrono::microseconds PauseBeforeRetry(MeetingClock::duration elapsed,
                                           std::chrono::milliseconds most);

// Owns a file descriptor.
class SocketFd {
 public:
  SocketFd() = default;
  explicit SocketFd(int fd) : fd_(fd) {}
  SocketFd(SocketFd&& other) noexcept : fd_(other.Release()) {}
  SocketFd& operator=(SocketFd&& other) noexcept;
  ~SocketFd() { Close(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }
  void Close();

 private:
  int fd_ = -1;
};

// An IPv4 or IPv6 address with a port.
class SocketAddress {
 public:
  SocketAddress() = default;
  SocketAddress(const sockaddr* address, socklen_t size);
  // The addresses of a connection's two ends, or of a listening socket. Not
  // valid() for sockets of another kind.
  static SocketAddress OwnEnd(int fd);
  static SocketAddress OtherEnd(int fd);
  // `host` is numeric: "10.0.0.1", "fd00::1", "fe80::1%eth0".
  static absl::optional<SocketAddress> Parse(const std::string& host, int port);

  bool valid() const { return size_ > 0; }
  int family() const { return storage_.ss_family; }
  // Numeric; "" if not valid.
  std::string host() const;
  int port() const;
  void set_port(int port);
  // "10.0.0.1:29500", "[fd00::1]:29500".
  std::string text() const;

  bool IsLoopback() const;
  // Whether it is only valid on its own link: fe80::1, 169.254.0.1.
  bool IsLinkLocal() const;
  // Whether it stands for all addresses of a host: 0.0.0.0, ::.
  bool IsWildcard() const;
  // Whether the two differ at most in the port.
  bool SameHost(const SocketAddress& other) const;

  const sockaddr* get() const {
    return reinterpret_cast<const sockaddr*>(&storage_);
  }
  socklen_t size() const { return size_; }

 private:
  sockaddr_storage storage_ = {};
  socklen_t size_ = 0;
};

// An address of a network interface, which may have several.
struct InterfaceAddress {
  std::string interface;
  SocketAddress address;
};

// Returns the addresses of this host's interfaces that are up, loopback
// included.
std::vector<InterfaceAddress> InterfaceAddresses();

// Returns the interface that has this address, or "".
std::string InterfaceOf(const SocketAddress& address);

// Returns the addresses to which `host`, a name or an address, resolves here,
// best first. UNAVAILABLE if there is none, which may change.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port);

// Returns this host's address in packets to `peer`, without sending any;
// nullopt if no route leads there.
absl::optional<SocketAddress> AddressTowards(const SocketAddress& peer);

// Returns this host's address in packets on the default route; nullopt without
// such a route.
absl::optional<SocketAddress> DefaultRouteAddress();

std::string HostName();

// Returns this host's InfiniBand and RoCE devices, "mlx5_0, mlx5_1", if
// `library`, by which NCCL uses them, can't be opened: it would take TCP, in
// silence. "" if it can, or there are none. `root`: prefix of /sys, for tests.
std::string UnusableFabric(const std::string& root = "",
                           const char* library = "libibverbs.so.1");

// Listens at *address; port 0 becomes the free one that was found.
// ALREADY_EXISTS if another program has the port.
absl::StatusOr<SocketFd> ListenAt(SocketAddress* address);

// UNAVAILABLE if nobody answers by `deadline`.
absl::StatusOr<SocketFd> ConnectTo(const SocketAddress& address,
                                   Deadline deadline);

// Whether an error of these functions says that the other host, not just its
// process, doesn't answer or can't be reached.
bool IsSilentHost(const absl::Status& status);

// Makes an idle connection fail (IsSilentHost) once the other host hasn't
// answered for `limit`. With data queued, the system takes minutes to notice:
// then probe on a second connection, which a host accepts even for a stopped
// process.
void NoticeSilence(int fd, std::chrono::milliseconds limit);

// Makes small messages leave at once, and the connection fail within two
// minutes after the peer's host has vanished.
void SetUpConnection(int fd);

// UNAVAILABLE if the connection is broken, DEADLINE_EXCEEDED.
absl::Status SendAll(int fd, absl::string_view bytes, Deadline deadline);

// Sends at least one byte, unless `bytes` is empty; returns how many. Errors as
// SendAll's.
absl::StatusOr<size_t> SendSome(int fd, absl::string_view bytes,
                                Deadline deadline);

// Waits until there are bytes to receive, or the end of the connection.
// DEADLINE_EXCEEDED.
absl::Status AwaitInput(int fd, Deadline deadline);

// Appends at least one byte to *bytes. UNAVAILABLE if the connection is closed
// or broken, DEADLINE_EXCEEDED.
absl::Status ReceiveSome(int fd, Deadline deadline, std::string* bytes);

// Fills `out` with `bytes` bytes. Errors as ReceiveSome's.
absl::Status ReceiveAll(int fd, char* out, size_t bytes, Deadline deadline);

// Raises this process's soft limit of open files to at least `wanted`, if the
// hard one allows.
void AllowOpenFiles(int wanted);

// Returns bytes of the system's random number generator.
std::string RandomBytes(size_t count);

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_NETWORK_H_
