// SPDX-License-Identifier: Apache-2.0
//
// Reads and compares fingerprints, before any of a plugin's code runs.
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/types/optional.h"
#include "base/elf_section.h"
#include "base/status.h"
#include "host/plugins/config_docs.h"
#include "host/plugins/plugin_host.h"

namespace capstan {
namespace {

// Differences change memory layout or symbol names.
constexpr const char* kMustBeEqual[] = {"libtorch",  "absl",   "protobuf",
                                        "sanitizer", "stdlib", "containers"};

std::map<std::string, std::string> Lines(absl::string_view text) {
  std::map<std::string, std::string> lines;
  for (absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    const std::pair<std::string, std::string> name_and_value =
        absl::StrSplit(line, absl::MaxSplits('=', 1));
    // Values are shown, and a damaged file's may be anything.
    lines.emplace(name_and_value.first,
                  absl::Utf8SafeCHexEscape(name_and_value.second));
  }
  return lines;
}

// The minor of "1.3"; -1 for another major version, or none.
int MinorOf(absl::string_view version) {
  int minor = -1;
  if (!absl::ConsumePrefix(&version, "1.") ||
      !absl::SimpleAtoi(version, &minor) || absl::StrCat(minor) != version) {
    return -1;
  }
  return minor;
}

// Why a trainer with the lines `ours` can't take a plugin with `theirs`, as far
// as the SDK is concerned; "" if it can. Of its own version it takes only those
// of the same headers: a version under work may still change in any way.
std::string SdkDifference(std::map<std::string, std::string>& ours,
                          std::map<std::string, std::string>& theirs) {
  const int most = MinorOf(ours["sdk"]);
  const std::string other = theirs.count("sdk") ? theirs["sdk"] : "(missing)";
  const int minor = MinorOf(other);
  if (minor < 0 || minor > most) {
    return absl::StrCat("SDK: trainer ", ours["sdk"], ", plugin ", other,
                        minor > most ? ", which is newer" : "");
  }
  if (minor < most || theirs["headers"] == ours["headers"]) return "";
  return absl::StrCat("headers of SDK ", ours["sdk"], ": trainer ",
                      ours["headers"], ", plugin ", theirs["headers"]);
}

}  // namespace

const char* CoreFingerprint() { return CAPSTAN_FINGERPRINT; }

std::string SdkVersion(absl::string_view fingerprint) {
  return Lines(fingerprint)["sdk"];
}

absl::Status CompareFingerprints(absl::string_view core,
                                 absl::string_view plugin) {
  std::map<std::string, std::string> ours = Lines(core);
  std::map<std::string, std::string> theirs = Lines(plugin);
  std::string differences;
  for (const char* name : kMustBeEqual) {
    const std::string other = theirs.count(name) ? theirs[name] : "(missing)";
    if (other == ours[name]) continue;
    absl::StrAppend(&differences, differences.empty() ? "" : "; ", name,
                    ": trainer ", ours[name], ", plugin ", other);
  }
  const std::string sdk = SdkDifference(ours, theirs);
  if (!sdk.empty()) {
    absl::StrAppend(&differences, differences.empty() ? "" : "; ", sdk);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("it was built for another trainer (", differences,
                   "): build it again with this trainer's SDK and compiler"));
}

absl::StatusOr<std::string> ReadFingerprint(const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(const absl::optional<std::string> text,
                           ReadElfSection(path, "capstan_fp"));
  if (text.has_value()) return std::string(text->c_str());
  return absl::FailedPreconditionError(
      "it is no Capstan plugin: it has no fingerprint (is CAPSTAN_PLUGIN "
      "missing?)");
}

std::vector<std::string> ReadModelTypes(const std::string& path) {
  const absl::StatusOr<absl::optional<std::string>> text =
      ReadElfSection(path, "capstan_types");
  if (!text.ok() || !text->has_value()) return {};
  // The constants, each ended by at least one '\0'.
  return absl::StrSplit(**text, '\0', absl::SkipEmpty());
}

google::protobuf::FileDescriptorSet ReadConfigDocs(const std::string& path) {
  google::protobuf::FileDescriptorSet docs;
  const absl::StatusOr<absl::optional<std::string>> text =
      ReadElfSection(path, "capstan_docs");
  if (!text.ok() || !text->has_value() || !docs.ParseFromString(**text)) {
    docs.Clear();
  }
  return docs;
}

}  // namespace capstan
