// SPDX-License-Identifier: Apache-2.0
#include "trainer/launcher/pmi1.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace capstan {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kLongestLine = 65536;

absl::Status Lost(absl::string_view problem) {
  return absl::UnavailableError(
      absl::StrCat("mpiexec's service for its processes (PMI_FD) ", problem));
}

}  // namespace

absl::StatusOr<std::string> Pmi1::ReadLine() {
  while (true) {
    const size_t end = read_.find('\n');
    if (end != std::string::npos) {
      std::string line = read_.substr(0, end);
      read_.erase(0, end + 1);
      return line;
    }
    if (read_.size() > kLongestLine) return Lost("doesn't speak PMI-1");
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        deadline_ - Clock::now());
    pollfd ready = {fd_, POLLIN, 0};
    const int polled =
        poll(&ready, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
    if (polled < 0 && errno == EINTR) continue;
    if (polled == 0) {
      return Lost("doesn't answer: have all its processes started?");
    }
    char bytes[4096];
    const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Lost(absl::StrCat("is lost: ", strerror(errno)));
    if (got == 0) return Lost("has hung up");
    read_.append(bytes, got);
  }
}

absl::StatusOr<Pmi1::Words> Pmi1::Ask(const std::string& request,
                                      absl::string_view answer) {
  const std::string line = request + "\n";
  for (size_t sent = 0; sent < line.size();) {
    const ssize_t wrote =
        send(fd_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return Lost(absl::StrCat("is lost: ", strerror(errno)));
    sent += wrote;
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string reply, ReadLine());
  Words words;
  for (absl::string_view word : absl::StrSplit(reply, ' ', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    words[pair.first] = pair.second;
  }
  if (words["cmd"] != answer) {
    return Lost(absl::StrCat("answers \"", request, "\" with \"", reply, "\""));
  }
  return words;
}

absl::Status Pmi1::Init() {
  CAPSTAN_ASSIGN_OR_RETURN(
      Words words,
      Ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init"));
  if (words["rc"] == "0") return absl::OkStatus();
  return Lost("doesn't speak PMI-1");
}

absl::StatusOr<std::string> Pmi1::Space() {
  if (space_.empty()) {
    CAPSTAN_ASSIGN_OR_RETURN(Words words,
                             Ask("cmd=get_my_kvsname", "my_kvsname"));
    space_ = words["kvsname"];
    if (space_.empty()) return Lost("has no name for its keys");
  }
  return space_;
}

absl::Status Pmi1::Put(absl::string_view key, absl::string_view value) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string space, Space());
  CAPSTAN_ASSIGN_OR_RETURN(
      Words words, Ask(absl::StrCat("cmd=put kvsname=", space, " key=", key,
                                    " value=", value),
                       "put_result"));
  if (words["rc"] == "0") return absl::OkStatus();
  return Lost(absl::StrCat("doesn't take ", key));
}

absl::StatusOr<std::string> Pmi1::Get(absl::string_view key) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string space, Space());
  CAPSTAN_ASSIGN_OR_RETURN(
      Words words,
      Ask(absl::StrCat("cmd=get kvsname=", space, " key=", key), "get_result"));
  if (words["rc"] == "0") return words["value"];
  return absl::NotFoundError(
      absl::StrCat("mpiexec's service for its processes has no ", key));
}

absl::Status Pmi1::Barrier() {
  return Ask("cmd=barrier_in", "barrier_out").status();
}

absl::Status Pmi1::Finalize() {
  return Ask("cmd=finalize", "finalize_ack").status();
}

absl::StatusOr<std::vector<int>> HostsOfRanks(absl::string_view mapping,
                                              int ranks) {
  const absl::Status bad = absl::InvalidArgumentError(
      absl::StrCat("PMI_process_mapping is \"", mapping, "\""));
  struct Block {
    int first = 0;
    int hosts = 0;
    int ranks = 0;  // of each host
  };
  std::vector<Block> blocks;
  absl::string_view rest = mapping;
  if (!absl::ConsumePrefix(&rest, "(vector,(") ||
      !absl::ConsumeSuffix(&rest, "))")) {
    return bad;
  }
  for (absl::string_view text : absl::StrSplit(rest, "),(")) {
    const std::vector<absl::string_view> numbers = absl::StrSplit(text, ',');
    Block block;
    if (numbers.size() != 3 || !absl::SimpleAtoi(numbers[0], &block.first) ||
        !absl::SimpleAtoi(numbers[1], &block.hosts) ||
        !absl::SimpleAtoi(numbers[2], &block.ranks) || block.first < 0 ||
        block.hosts < 1 || block.ranks < 1) {
      return bad;
    }
    blocks.push_back(block);
  }
  std::vector<int> host_of;
  const auto wanted = static_cast<size_t>(ranks);
  while (host_of.size() < wanted) {
    for (const Block& block : blocks) {
      for (int host = 0; host < block.hosts && host_of.size() < wanted;
           ++host) {
        const size_t count =
            std::min<size_t>(block.ranks, wanted - host_of.size());
        host_of.insert(host_of.end(), count, block.first + host);
      }
    }
  }
  return host_of;
}

}  // namespace capstan
