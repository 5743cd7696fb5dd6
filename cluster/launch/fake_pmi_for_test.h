// SPDX-License-Identifier: Apache-2.0
//
// mpiexec's side of PMI-1, for tests.
#ifndef CAPSTAN_CLUSTER_LAUNCH_FAKE_PMI_FOR_TEST_H_
#define CAPSTAN_CLUSTER_LAUNCH_FAKE_PMI_FOR_TEST_H_

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace capstan {

// Serves `ranks` clients from a thread until all have closed or finalized.
class FakePmi {
 public:
  // mapping: the value of PMI_process_mapping; "": it has none.
  FakePmi(int ranks, const std::string& mapping) : clients_(ranks) {
    if (!mapping.empty()) values_["PMI_process_mapping"] = mapping;
    for (Client& client : clients_) {
      int ends[2];
      EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
      client.theirs = ends[0];
      client.ours = ends[1];
    }
    thread_ = std::thread([this] { Serve(); });
  }
  ~FakePmi() {
    // The thread ends when each has hung up.
    for (const Client& client : clients_) shutdown(client.theirs, SHUT_RDWR);
    thread_.join();
    for (const Client& client : clients_) {
      close(client.theirs);
      close(client.ours);
    }
  }
  FakePmi(const FakePmi&) = delete;
  FakePmi& operator=(const FakePmi&) = delete;

  // A client's end; ours to close.
  int fd(int rank) const { return clients_[rank].theirs; }

 private:
  struct Client {
    int theirs = -1;
    int ours = -1;
    bool open = true;
    bool waits = false;  // in a barrier
    std::string read;
  };

  static std::string Field(const std::string& line, const std::string& name) {
    const size_t at = line.find(" " + name + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + name.size() + 2;
    return line.substr(begin, line.find(' ', begin) - begin);
  }

  static void Answer(const Client& client, const std::string& line) {
    const std::string text = line + "\n";
    EXPECT_EQ(send(client.ours, text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }

  void Take(Client* client, const std::string& line) {
    if (absl::StartsWith(line, "cmd=init ")) {
      Answer(*client,
             "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0");
    } else if (line == "cmd=get_my_kvsname") {
      Answer(*client, "cmd=my_kvsname kvsname=kvs_1_0_vm");
    } else if (absl::StartsWith(line, "cmd=put kvsname=kvs_1_0_vm ")) {
      values_[Field(line, "key")] = Field(line, "value");
      Answer(*client, "cmd=put_result rc=0 msg=success");
    } else if (absl::StartsWith(line, "cmd=get kvsname=kvs_1_0_vm ")) {
      const auto found = values_.find(Field(line, "key"));
      Answer(*client, found == values_.end()
                          ? "cmd=get_result rc=-1 msg=not_found value=unknown"
                          : "cmd=get_result rc=0 value=" + found->second);
    } else if (line == "cmd=barrier_in") {
      client->waits = true;
      for (const Client& other : clients_) {
        if (!other.waits) return;
      }
      for (Client& other : clients_) {
        other.waits = false;
        Answer(other, "cmd=barrier_out");
      }
    } else if (line == "cmd=finalize") {
      Answer(*client, "cmd=finalize_ack");
    } else {
      ADD_FAILURE() << line;
    }
  }

  void Serve() {
    while (true) {
      std::vector<pollfd> fds;
      bool any = false;
      for (const Client& client : clients_) {
        fds.push_back({client.open ? client.ours : -1, POLLIN, 0});
        any |= client.open;
      }
      if (!any) return;
      poll(fds.data(), fds.size(), -1);
      for (size_t i = 0; i < fds.size(); ++i) {
        if (fds[i].revents == 0) continue;
        Client& client = clients_[i];
        char bytes[512];
        const ssize_t got = recv(client.ours, bytes, sizeof(bytes), 0);
        client.open = got > 0;
        if (!client.open) continue;
        client.read.append(bytes, got);
        for (size_t end; (end = client.read.find('\n')) != std::string::npos;) {
          const std::string line = client.read.substr(0, end);
          client.read.erase(0, end + 1);
          Take(&client, line);
        }
      }
    }
  }

  std::vector<Client> clients_;
  std::map<std::string, std::string> values_;
  std::thread thread_;
};

}  // namespace capstan

#endif  // CAPSTAN_CLUSTER_LAUNCH_FAKE_PMI_FOR_TEST_H_
