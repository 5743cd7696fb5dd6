// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl_network.h"

#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

// The rest of the last line that has `before`; "" if none has.
absl::string_view RestOfLast(absl::string_view log, absl::string_view before) {
  const size_t at = log.rfind(before);
  if (at == absl::string_view::npos) return "";
  log.remove_prefix(at + before.size());
  return absl::StripAsciiWhitespace(log.substr(0, log.find('\n')));
}

// Of "[0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>": mlx5_0 and
// mlx5_1.
std::vector<std::string> DevicesOf(absl::string_view text) {
  std::vector<std::string> devices;
  text = text.substr(0, text.find(';'));
  for (absl::string_view word : absl::StrSplit(text, ' ', absl::SkipEmpty())) {
    const size_t close = word.find(']'), colon = word.find(':');
    if (!absl::StartsWith(word, "[") || close == absl::string_view::npos ||
        colon == absl::string_view::npos || colon < close) {
      continue;
    }
    devices.emplace_back(word.substr(close + 1, colon - close - 1));
  }
  return devices;
}

std::string& Connection() {
  static auto* const connection = new std::string;
  return *connection;
}

}  // namespace

std::string GpuConnection() { return Connection(); }

void SetGpuConnection(const std::string& connection) {
  Connection() = connection;
}

std::string NcclNetwork(absl::string_view log) {
  const absl::string_view network = RestOfLast(log, "Using network ");
  if (network.empty()) return "";
  const std::vector<std::string> devices =
      DevicesOf(RestOfLast(log, absl::StrCat("NET/", network, " : Using ")));
  return absl::StrCat(network == "Socket" ? "sockets" : network,
                      devices.empty() ? "" : " ", absl::StrJoin(devices, ", "));
}

}  // namespace capstan
