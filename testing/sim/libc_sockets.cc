// SPDX-License-Identifier: Apache-2.0
//
// Sockets and names of hosts.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <memory>
#include <string>

#include "testing/sim/network.h"
#include "testing/sim/objects.h"
#include "testing/sim/real.h"

namespace capstan::sim {
namespace {

Address AddressOf(const sockaddr* address) {
  if (address->sa_family != AF_INET) return {};
  const auto* const v4 = reinterpret_cast<const sockaddr_in*>(address);
  return {ntohl(v4->sin_addr.s_addr), ntohs(v4->sin_port)};
}

void Fill(const Address& address, sockaddr_in* out) {
  *out = {};
  out->sin_family = AF_INET;
  out->sin_addr.s_addr = htonl(address.host);
  out->sin_port = htons(static_cast<uint16_t>(address.port));
}

int Give(const Address& address, sockaddr* out, socklen_t* size) {
  sockaddr_in v4;
  Fill(address, &v4);
  memcpy(out, &v4, std::min<size_t>(*size, sizeof(v4)));
  *size = sizeof(v4);
  return 0;
}

Socket* SocketOf(const Held& file) { return dynamic_cast<Socket*>(file.get()); }

ssize_t Send(int fd, const char* bytes, size_t size, int flags) {
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return -ENOTSOCK;
  while (true) {
    const ssize_t n = socket->Write(bytes, size);
    if (n != -EAGAIN || socket->nonblocking || (flags & MSG_DONTWAIT) != 0) {
      return n;
    }
    const int waited = Await(socket, POLLOUT, kNever);
    if (waited != 0) return waited;
  }
}

ssize_t Receive(int fd, char* out, size_t size, int flags) {
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return -ENOTSOCK;
  while (true) {
    const ssize_t n = (flags & MSG_PEEK) != 0 ? socket->Peek(out, size)
                                              : socket->Read(out, size);
    if (n != -EAGAIN || socket->nonblocking || (flags & MSG_DONTWAIT) != 0) {
      return n;
    }
    const int waited = Await(socket, POLLIN, kNever);
    if (waited != 0) return waited;
  }
}

// What getaddrinfo and getifaddrs allocate, in one piece.
struct OneAddress {
  addrinfo info = {};
  sockaddr_in address = {};
};
struct TwoInterfaces {
  ifaddrs list[2] = {};
  sockaddr_in addresses[2] = {};
  char names[2][8] = {"lo", "eth0"};
};

bool Resolve(const std::string& name, bool numeric, uint32_t* host) {
  in_addr parsed = {};
  if (inet_pton(AF_INET, name.c_str(), &parsed) == 1) {
    *host = ntohl(parsed.s_addr);
    return true;
  }
  if (numeric) return false;
  for (int i = 0; i < TheWorld()->hosts(); ++i) {
    if (TheWorld()->host(i).name != name) continue;
    *host = TheWorld()->host(i).address;
    return true;
  }
  return false;
}

}  // namespace
}  // namespace capstan::sim

using namespace capstan::sim;  // NOLINT: of the functions below

extern "C" {

int socket(int family, int type, int protocol) noexcept {
  SIM_REAL(socket, family, type, protocol);
  if (family != AF_INET) return Result(-EAFNOSUPPORT);
  auto made = std::make_shared<Socket>(Mine()->host, type & 0xf);
  made->nonblocking = (type & SOCK_NONBLOCK) != 0;
  return NewDescriptor(std::move(made));
}
int bind(int fd, const sockaddr* address, socklen_t size) noexcept {
  SIM_REAL(bind, fd, address, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  return Result(socket == nullptr ? -EBADF : socket->Bind(AddressOf(address)));
}
int listen(int fd, int backlog) noexcept {
  SIM_REAL(listen, fd, backlog);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  return Result(socket == nullptr ? -EBADF : socket->Listen());
}
int connect(int fd, const sockaddr* address, socklen_t size) {
  SIM_REAL(connect, fd, address, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return Result(-EBADF);
  const int started = socket->Connect(AddressOf(address));
  if (started != -EINPROGRESS || socket->nonblocking) return Result(started);
  Await(socket, POLLIN | POLLOUT, kNever);
  return Result(-socket->TakeError());
}
int accept4(int fd, sockaddr* address, socklen_t* size, int flags) {
  SIM_REAL(accept4, fd, address, size, flags);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return Result(-EBADF);
  std::shared_ptr<Socket> accepted = socket->Accept();
  while (accepted == nullptr) {
    if (socket->nonblocking) return Result(-EAGAIN);
    if (const int waited = Await(socket, POLLIN, kNever); waited != 0) {
      return Result(waited);
    }
    accepted = socket->Accept();
  }
  accepted->nonblocking = (flags & SOCK_NONBLOCK) != 0;
  if (address != nullptr) Give(accepted->other, address, size);
  return NewDescriptor(std::move(accepted));
}
int accept(int fd, sockaddr* address, socklen_t* size) {
  SIM_REAL(accept, fd, address, size);
  return accept4(fd, address, size, 0);
}
ssize_t send(int fd, const void* bytes, size_t size, int flags) {
  SIM_REAL(send, fd, bytes, size, flags);
  return Result(Send(fd, static_cast<const char*>(bytes), size, flags));
}
ssize_t recv(int fd, void* out, size_t size, int flags) {
  SIM_REAL(recv, fd, out, size, flags);
  return Result(Receive(fd, static_cast<char*>(out), size, flags));
}
int shutdown(int fd, int how) noexcept {
  SIM_REAL(shutdown, fd, how);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return Result(-EBADF);
  return Result(socket->Shutdown(how));
}
int getsockname(int fd, sockaddr* address, socklen_t* size) noexcept {
  SIM_REAL(getsockname, fd, address, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  return socket == nullptr ? Result(-ENOTSOCK)
                           : Give(socket->own, address, size);
}
int getpeername(int fd, sockaddr* address, socklen_t* size) noexcept {
  SIM_REAL(getpeername, fd, address, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  if (socket == nullptr) return Result(-ENOTSOCK);
  return socket->connected() ? Give(socket->other, address, size)
                             : Result(-ENOTCONN);
}
int setsockopt(int fd, int level, int name, const void* value,
               socklen_t size) noexcept {
  SIM_REAL(setsockopt, fd, level, name, value, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  int number = 0;
  memcpy(&number, value, std::min<size_t>(size, sizeof(number)));
  const bool alive =
      (level == SOL_SOCKET && name == SO_KEEPALIVE) ||
      (level == IPPROTO_TCP &&
       (name == TCP_KEEPIDLE || name == TCP_KEEPINTVL || name == TCP_KEEPCNT));
  if (socket != nullptr && alive) socket->SetKeepAlive(name, number);
  return 0;
}
int getsockopt(int fd, int level, int name, void* value,
               socklen_t* size) noexcept {
  SIM_REAL(getsockopt, fd, level, name, value, size);
  const Held file(fd);
  Socket* const socket = SocketOf(file);
  const int number =
      socket != nullptr && level == SOL_SOCKET && name == SO_ERROR
          ? socket->TakeError()
          : 0;
  memcpy(value, &number, std::min<size_t>(*size, sizeof(number)));
  return 0;
}

int getaddrinfo(const char* name, const char* service, const addrinfo* hints,
                addrinfo** list) {
  SIM_REAL(getaddrinfo, name, service, hints, list);
  uint32_t host = 0;
  const bool numeric =
      hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!Resolve(name, numeric, &host)) return EAI_NONAME;
  auto* const one = new OneAddress;
  Fill({host, 0}, &one->address);
  one->info.ai_family = AF_INET;
  one->info.ai_socktype = SOCK_STREAM;
  one->info.ai_addrlen = sizeof(one->address);
  one->info.ai_addr = reinterpret_cast<sockaddr*>(&one->address);
  *list = &one->info;
  return 0;
}
void freeaddrinfo(addrinfo* list) noexcept {
  if (Self() == nullptr) {
    static const auto real = reinterpret_cast<decltype(&freeaddrinfo)>(
        dlsym(RTLD_NEXT, "freeaddrinfo"));
    return real(list);
  }
  delete reinterpret_cast<OneAddress*>(list);
}
int getnameinfo(const sockaddr* address, socklen_t size, char* host,
                socklen_t host_size, char* service, socklen_t service_size,
                int flags) {
  SIM_REAL(getnameinfo, address, size, host, host_size, service, service_size,
           flags);
  const Address a = AddressOf(address);
  snprintf(host, host_size, "%u.%u.%u.%u", a.host >> 24, a.host >> 16 & 255,
           a.host >> 8 & 255, a.host & 255);
  return 0;
}
int getifaddrs(ifaddrs** list) noexcept {
  SIM_REAL(getifaddrs, list);
  auto* const two = new TwoInterfaces;
  const uint32_t hosts[] = {(127u << 24) + 1, Mine()->host->address};
  for (int i = 0; i < 2; ++i) {
    Fill({hosts[i], 0}, &two->addresses[i]);
    two->list[i].ifa_name = two->names[i];
    two->list[i].ifa_flags = IFF_UP;
    two->list[i].ifa_addr = reinterpret_cast<sockaddr*>(&two->addresses[i]);
    two->list[i].ifa_next = i == 0 ? &two->list[1] : nullptr;
  }
  *list = two->list;
  return 0;
}
void freeifaddrs(ifaddrs* list) noexcept {
  if (Self() == nullptr) {
    static const auto real = reinterpret_cast<decltype(&freeifaddrs)>(
        dlsym(RTLD_NEXT, "freeifaddrs"));
    return real(list);
  }
  delete reinterpret_cast<TwoInterfaces*>(list);
}

}  // extern "C"
