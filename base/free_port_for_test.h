// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_FREE_PORT_FOR_TEST_H_
#define CAPSTAN_BASE_FREE_PORT_FOR_TEST_H_

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <random>

namespace capstan {

// A port of 127.0.0.1 that was free a moment ago, and that the kernel gives to
// no connection meanwhile: those that it chooses by itself lie elsewhere. Any,
// so that two tests hardly ever get the same; in sandboxes even their process
// ids are.
inline int FreePort() {
  constexpr int kFirst = 10000;
  constexpr int kEnd = 20000;
  int chosen_first = 0;
  int chosen_last = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> chosen_first >>
      chosen_last;
  std::random_device random;
  constexpr int kTries = 2 * (kEnd - kFirst);
  for (int tries = 0; tries < kTries; ++tries) {
    const int port = kFirst + static_cast<int>(random() % (kEnd - kFirst));
    // On some machines the kernel's are all of them.
    const bool chosen = port >= chosen_first && port <= chosen_last;
    if (chosen && tries < kTries / 2) continue;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool free =
        bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
    close(fd);
    if (free) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

}  // namespace capstan

#endif  // CAPSTAN_BASE_FREE_PORT_FOR_TEST_H_
