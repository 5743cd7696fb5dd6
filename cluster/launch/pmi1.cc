// SPDX-License-Identifier: Apache-2.0
#include "cluster/launch/pmi1.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace capstan {
namespace {

constexpr size_t kLongestLine = 65536;

absl::Status Lost(absl::string_view problem) {
  return absl::UnavailableError(
      absl::StrCat("mpiexec's service for its processes (PMI_FD) ", problem));
}

}  // namespace

absl::StatusOr<Pmi1::Words> Pmi1::Ask(const std::string& request,
                                      absl::string_view answer) {
  absl::Status status = SendAll(fd_, request + "\n", deadline_);
  std::string reply;
  // It only answers, so that nothing follows the line.
  while (status.ok() && !absl::EndsWith(reply, "\n")) {
    if (reply.size() > kLongestLine) return Lost("doesn't speak PMI-1");
    status = ReceiveSome(fd_, deadline_, &reply);
  }
  if (absl::IsDeadlineExceeded(status)) {
    return Lost("doesn't answer: have all its processes started?");
  }
  if (!status.ok()) return Lost(absl::StrCat("is lost: ", status.message()));
  reply.pop_back();
  Words words;
  for (absl::string_view word : absl::StrSplit(reply, ' ', absl::SkipEmpty())) {
    words.insert(absl::StrSplit(word, absl::MaxSplits('=', 1)));
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
  if (words["rc"] != "0") return Lost("doesn't speak PMI-1");
  return absl::OkStatus();
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
  if (words["rc"] != "0") return Lost(absl::StrCat("doesn't take ", key));
  return absl::OkStatus();
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
  absl::string_view rest = mapping;
  if (!absl::ConsumePrefix(&rest, "(vector,(") ||
      !absl::ConsumeSuffix(&rest, "))")) {
    return bad;
  }
  // Each: the first host, how many, and the ranks of each.
  std::vector<std::vector<int>> blocks;
  for (absl::string_view text : absl::StrSplit(rest, "),(")) {
    std::vector<int>& block = blocks.emplace_back();
    for (absl::string_view number : absl::StrSplit(text, ',')) {
      if (!absl::SimpleAtoi(number, &block.emplace_back())) return bad;
    }
    if (block.size() != 3 || block[0] < 0 || block[1] < 1 || block[2] < 1) {
      return bad;
    }
  }
  const auto wanted = static_cast<size_t>(ranks);
  std::vector<int> host_of;
  for (size_t i = 0; host_of.size() < wanted; i = (i + 1) % blocks.size()) {
    for (int host = 0; host < blocks[i][1] && host_of.size() < wanted; ++host) {
      host_of.resize(std::min(wanted, host_of.size() + blocks[i][2]),
                     blocks[i][0] + host);
    }
  }
  return host_of;
}

}  // namespace capstan
