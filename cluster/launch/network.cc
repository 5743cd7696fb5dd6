// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/network.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <glog/logging.h>
#include <ifaddrs.h>
#include <limits.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <system_error>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace capstan {
namespace {

// Marks errors for IsSilentHost.
constexpr char kSilentHost[] = "capstan/silent_host";

absl::Status SocketError(absl::string_view what, int error) {
  absl::Status status =
      absl::UnavailableError(absl::StrCat(what, ": ", strerror(error)));
  if (error == ETIMEDOUT || error == EHOSTUNREACH || error == ENETUNREACH ||
      error == EHOSTDOWN) {
    status.SetPayload(kSilentHost, absl::Cord());
  }
  return status;
}

const sockaddr_in* V4(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in*>(address.get());
}

const sockaddr_in6* V6(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr_in6*>(address.get());
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
  void operator()(ifaddrs* list) const { freeifaddrs(list); }
};

// Sets *list; returns getaddrinfo's error.
int Look(const std::string& host, int flags,
         std::unique_ptr<addrinfo, FreeAddresses>* list) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (error == 0) list->reset(found);
  return error;
}

// Waits for one of poll's `events`.
absl::Status WaitFor(int fd, int16_t events, Deadline deadline) {
  while (true) {
    const int timeout_ms = MillisecondsUntil(deadline);
    pollfd one = {fd, events, 0};
    const int n = poll(&one, 1, timeout_ms);
    if (n > 0) return absl::OkStatus();
    if (n < 0 && errno != EINTR) return SocketError("poll", errno);
    if (n == 0 && MillisecondsUntil(deadline) == 0) {
      return absl::DeadlineExceededError("no answer");
    }
  }
}

// Calls `transfer`, which is send or recv, until it has transferred something;
// returns how much. `event` is what poll calls its readiness.
template <typename Transfer>
absl::StatusOr<size_t> WhenReady(int fd, int16_t event, Deadline deadline,
                                 Transfer transfer) {
  while (true) {
    const ssize_t n = transfer();
    if (n == 0 && event == POLLIN) {
      return absl::UnavailableError("the connection was closed");
    }
    if (n >= 0) return static_cast<size_t>(n);
    if (errno == EINTR) continue;
    if (errno != EAGAIN && errno != EWOULDBLOCK) {
      return SocketError("the connection broke", errno);
    }
    CAPSTAN_RETURN_IF_ERROR(WaitFor(fd, event, deadline));
  }
}

SocketAddress EndOf(int fd, int (*get)(int, sockaddr*, socklen_t*)) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (get(fd, generic, &size) != 0) return SocketAddress();
  return SocketAddress(generic, size);
}

void SetOption(int fd, int level, int name, int value) {
  // None of those set is essential.
  if (setsockopt(fd, level, name, &value, sizeof(value)) != 0) return;
}

}  // namespace

int MillisecondsUntil(Deadline deadline) {
  const Deadline now = MeetingClock::now();
  if (deadline <= now) return 0;
  constexpr int kHour = 3600 * 1000;
  if (deadline - now > std::chrono::milliseconds(kHour)) return kHour;
  return static_cast<int>(
      std::chrono::ceil<std::chrono::milliseconds>(deadline - now).count());
}

std::chrono::microseconds PauseBeforeRetry(MeetingClock::duration elapsed,
                                           std::chrono::milliseconds most) {
  static thread_local std::minstd_rand random{std::random_device()()};
  const auto pause = std::clamp<MeetingClock::duration>(
      elapsed / 10, std::chrono::milliseconds(1), most);
  std::uniform_real_distribution<double> share(0.5, 1.0);
  return std::chrono::duration_cast<std::chrono::microseconds>(pause *
                                                               share(random));
}

SocketFd& SocketFd::operator=(SocketFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void SocketFd::Close() {
  if (fd_ >= 0) close(Release());
}

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size) {
  if (address == nullptr || size > sizeof(storage_)) return;
  if (address->sa_family != AF_INET && address->sa_family != AF_INET6) return;
  memcpy(&storage_, address, size);
  size_ = size;
}

SocketAddress SocketAddress::OwnEnd(int fd) { return EndOf(fd, getsockname); }

SocketAddress SocketAddress::OtherEnd(int fd) { return EndOf(fd, getpeername); }

absl::optional<SocketAddress> SocketAddress::Parse(const std::string& host,
                                                   int port) {
  std::unique_ptr<addrinfo, FreeAddresses> list;
  if (Look(host, AI_NUMERICHOST, &list) != 0) return absl::nullopt;
  SocketAddress address(list->ai_addr, list->ai_addrlen);
  if (!address.valid()) return absl::nullopt;
  address.set_port(port);
  return address;
}

std::string SocketAddress::host() const {
  char text[NI_MAXHOST];
  if (!valid() || getnameinfo(get(), size_, text, sizeof(text), nullptr, 0,
                              NI_NUMERICHOST) != 0) {
    return "";
  }
  return text;
}

int SocketAddress::port() const {
  // At the same place in both.
  return valid() ? ntohs(V4(*this)->sin_port) : 0;
}

void SocketAddress::set_port(int port) {
  reinterpret_cast<sockaddr_in*>(&storage_)->sin_port =
      htons(static_cast<uint16_t>(port));
}

std::string SocketAddress::text() const {
  return family() == AF_INET6 ? absl::StrCat("[", host(), "]:", port())
                              : absl::StrCat(host(), ":", port());
}

bool SocketAddress::IsLoopback() const {
  if (!valid()) return false;
  if (family() == AF_INET) {
    return ntohl(V4(*this)->sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&V6(*this)->sin6_addr);
}

bool SocketAddress::IsLinkLocal() const {
  if (!valid()) return false;
  if (family() == AF_INET) {
    return ntohl(V4(*this)->sin_addr.s_addr) >> 16 == 0xa9fe;
  }
  return IN6_IS_ADDR_LINKLOCAL(&V6(*this)->sin6_addr);
}

bool SocketAddress::IsWildcard() const {
  if (!valid()) return false;
  if (family() == AF_INET) return V4(*this)->sin_addr.s_addr == INADDR_ANY;
  return IN6_IS_ADDR_UNSPECIFIED(&V6(*this)->sin6_addr);
}

bool SocketAddress::SameHost(const SocketAddress& other) const {
  if (!valid() || family() != other.family()) return false;
  if (family() == AF_INET) {
    return V4(*this)->sin_addr.s_addr == V4(other)->sin_addr.s_addr;
  }
  return memcmp(&V6(*this)->sin6_addr, &V6(other)->sin6_addr,
                sizeof(in6_addr)) == 0 &&
         V6(*this)->sin6_scope_id == V6(other)->sin6_scope_id;
}

std::vector<InterfaceAddress> InterfaceAddresses() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, FreeAddresses> list(first);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    const socklen_t size = one->ifa_addr->sa_family == AF_INET
                               ? sizeof(sockaddr_in)
                               : sizeof(sockaddr_in6);
    const SocketAddress address(one->ifa_addr, size);
    if (address.valid()) found.push_back({one->ifa_name, address});
  }
  return found;
}

std::string InterfaceOf(const SocketAddress& address) {
  for (const InterfaceAddress& one : InterfaceAddresses()) {
    if (one.address.SameHost(address)) return one.interface;
  }
  return "";
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const std::string& host,
                                                   int port) {
  std::unique_ptr<addrinfo, FreeAddresses> list;
  const int error = Look(host, 0, &list);
  if (error != 0) {
    return absl::UnavailableError(absl::StrCat(
        "the address of ", host, " isn't known: ", gai_strerror(error)));
  }
  std::vector<SocketAddress> found;
  for (const addrinfo* one = list.get(); one != nullptr; one = one->ai_next) {
    SocketAddress address(one->ai_addr, one->ai_addrlen);
    if (!address.valid()) continue;
    address.set_port(port);
    found.push_back(address);
  }
  if (found.empty()) {
    return absl::UnavailableError(
        absl::StrCat(host, " has no IPv4 or IPv6 address"));
  }
  return found;
}

absl::optional<SocketAddress> AddressTowards(const SocketAddress& peer) {
  const SocketFd fd(socket(peer.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return absl::nullopt;
  // Of a datagram socket, this only asks for the route.
  if (connect(fd.get(), peer.get(), peer.size()) != 0) return absl::nullopt;
  SocketAddress own = SocketAddress::OwnEnd(fd.get());
  if (!own.valid() || own.IsWildcard()) return absl::nullopt;
  own.set_port(0);
  return own;
}

absl::optional<SocketAddress> DefaultRouteAddress() {
  // Addresses reserved for documentation (RFC 5737 and 3849): only a default
  // route leads to them.
  for (const char* world : {"192.0.2.1", "2001:db8::1"}) {
    const absl::optional<SocketAddress> peer = SocketAddress::Parse(world, 9);
    if (!peer.has_value()) continue;
    const absl::optional<SocketAddress> own = AddressTowards(*peer);
    if (own.has_value() && !own->IsLoopback()) return own;
  }
  return absl::nullopt;
}

std::string UnusableFabric(const std::string& root, const char* library) {
  std::vector<std::string> devices;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(
           root + "/sys/class/infiniband", error)) {
    devices.push_back(entry.path().filename().string());
  }
  if (devices.empty()) return "";
  if (void* const opened = dlopen(library, RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(opened);
    return "";
  }
  std::sort(devices.begin(), devices.end());
  return absl::StrJoin(devices, ", ");
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  const bool known = gethostname(name, sizeof(name) - 1) == 0;
  return known && name[0] != '\0' ? name : "unknown";
}

absl::StatusOr<SocketFd> ListenAt(SocketAddress* address) {
  SocketFd fd(
      socket(address->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const auto error = [address](int number) {
    const std::string text =
        absl::StrCat(address->text(), ": ", strerror(number));
    return number == EADDRINUSE ? absl::AlreadyExistsError(text)
                                : absl::FailedPreconditionError(text);
  };
  if (!fd.valid()) return error(errno);
  // Connections of a run that has just ended don't keep the port.
  SetOption(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (address->family() == AF_INET6) {
    SetOption(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  }
  if (bind(fd.get(), address->get(), address->size()) != 0 ||
      listen(fd.get(), SOMAXCONN) != 0) {
    return error(errno);
  }
  *address = SocketAddress::OwnEnd(fd.get());
  return fd;
}

absl::StatusOr<SocketFd> ConnectTo(const SocketAddress& address,
                                   Deadline deadline) {
  SocketFd fd(
      socket(address.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return SocketError(address.text(), errno);
  if (connect(fd.get(), address.get(), address.size()) != 0) {
    if (errno != EINPROGRESS) return SocketError(address.text(), errno);
    if (!WaitFor(fd.get(), POLLOUT, deadline).ok()) {
      return SocketError(address.text(), ETIMEDOUT);
    }
    int error = 0;
    socklen_t size = sizeof(error);
    if (getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
      error = errno;
    }
    if (error != 0) return SocketError(address.text(), error);
  }
  // Where nobody listens on a port of this host, a socket that gets the same
  // one for its own end connects to itself.
  const SocketAddress own = SocketAddress::OwnEnd(fd.get());
  if (own.SameHost(address) && own.port() == address.port()) {
    return SocketError(address.text(), ECONNREFUSED);
  }
  SetUpConnection(fd.get());
  return fd;
}

void SetUpConnection(int fd) {
  SetOption(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  SetOption(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 15);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

bool IsSilentHost(const absl::Status& status) {
  return status.GetPayload(kSilentHost).has_value();
}

void NoticeSilence(int fd, std::chrono::milliseconds limit) {
  const int seconds = std::max<int>(1, static_cast<int>(limit.count() / 1000));
  // No TCP_USER_TIMEOUT: it also ends a connection whose other end has no room,
  // as it is stopped or busy, although its kernel answers each probe.
  SetOption(fd, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  SetOption(fd, IPPROTO_TCP, TCP_KEEPCNT, seconds);
}

absl::StatusOr<size_t> SendSome(int fd, absl::string_view bytes,
                                Deadline deadline) {
  return WhenReady(fd, POLLOUT, deadline, [&] {
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  });
}

absl::Status SendAll(int fd, absl::string_view bytes, Deadline deadline) {
  while (!bytes.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(const size_t sent, SendSome(fd, bytes, deadline));
    bytes.remove_prefix(sent);
  }
  return absl::OkStatus();
}

absl::Status AwaitInput(int fd, Deadline deadline) {
  return WaitFor(fd, POLLIN, deadline);
}

absl::Status ReceiveSome(int fd, Deadline deadline, std::string* bytes) {
  char buffer[16 << 10];
  CAPSTAN_ASSIGN_OR_RETURN(
      const size_t got, WhenReady(fd, POLLIN, deadline, [&] {
        return recv(fd, buffer, sizeof(buffer), MSG_DONTWAIT);
      }));
  bytes->append(buffer, got);
  return absl::OkStatus();
}

absl::Status ReceiveAll(int fd, char* out, size_t bytes, Deadline deadline) {
  for (size_t done = 0; done < bytes;) {
    CAPSTAN_ASSIGN_OR_RETURN(
        const size_t got, WhenReady(fd, POLLIN, deadline, [&] {
          return recv(fd, out + done, bytes - done, MSG_DONTWAIT);
        }));
    done += got;
  }
  return absl::OkStatus();
}

void AllowOpenFiles(int wanted) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t most = std::min<rlim_t>(limit.rlim_max, wanted);
  if (limit.rlim_cur >= most) return;
  limit.rlim_cur = most;
  // If it fails, accepting will say so.
  if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t done = 0; done < count;) {
    const ssize_t n = getrandom(&bytes[done], count - done, 0);
    PCHECK(n >= 0 || errno == EINTR) << "no random numbers";
    done += static_cast<size_t>(std::max<ssize_t>(n, 0));
  }
  return bytes;
}

}  // namespace capstan
