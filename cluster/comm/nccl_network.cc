// SPDX-License-Identifier: Apache-2.0
#include "cluster/comm/nccl_network.h"

#include <algorithm>
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

std::string (*the_log)() = nullptr;

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

std::string NcclWarnings(absl::string_view log, absl::string_view told) {
  constexpr absl::string_view kBefore = "NCCL WARN ";
  constexpr size_t kMost = 3;
  std::vector<absl::string_view> last;
  for (absl::string_view line : absl::StrSplit(log, '\n')) {
    const size_t at = line.find(kBefore);
    if (at == absl::string_view::npos) continue;
    line = absl::StripAsciiWhitespace(line.substr(at + kBefore.size()));
    if (line.empty() || absl::StrContains(told, line)) continue;
    last.erase(std::remove(last.begin(), last.end(), line), last.end());
    last.push_back(line);
    if (last.size() > kMost) last.erase(last.begin());
  }
  return absl::StrJoin(last, "; ");
}

std::string NcclLog() { return the_log == nullptr ? "" : the_log(); }

void SetNcclLog(std::string (*log)()) { the_log = log; }

}  // namespace capstan
