// SPDX-License-Identifier: Apache-2.0
#include "testing/faults/fault_point.h"

#include <cstdint>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace capstan {
namespace {

struct Site {
  int64_t passes = 0;
  bool may_return = false;
};

struct Faults {
  std::mutex mutex;
  std::map<std::string, Site> sites;
  bool counts = false;
  std::string site;
  int64_t pass = 0;
  std::string kind;
};

Faults& faults() {
  static Faults* const faults = new Faults;
  return *faults;
}

// Whether this is the pass that fails.
bool IsDue(const char* site, bool may_return, std::string* kind) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (!all.counts && all.site != site) return false;
  Site& passed = all.sites[site];
  passed.may_return = may_return;
  *kind = all.kind;
  return ++passed.passes == all.pass;
}

}  // namespace

std::atomic<bool> FaultPoint::armed_{false};

absl::Status FaultPoint::Fail(const char* site, bool may_return) {
  std::string kind;
  if (!IsDue(site, may_return, &kind)) return absl::OkStatus();
  const std::string text = absl::StrCat("a fault at ", site);
  if (kind == "oom") throw std::bad_alloc();
  if (kind == "throw" || !may_return) throw std::runtime_error(text);
  return absl::InternalError(text);
}

FaultPoint::Counts FaultPoint::Arm(const std::string& fault, int rank) {
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  const std::vector<std::string> parts = absl::StrSplit(fault, ':');
  if (parts.size() == 2 && parts[0] == "count") {
    all.counts = true;
    armed_ = true;
    return {absl::StrCat(parts[1], ".", rank)};
  }
  if (parts.size() == 4 && parts[0] == absl::StrCat(rank) &&
      absl::SimpleAtoi(parts[2], &all.pass)) {
    all.site = parts[1];
    all.kind = parts[3];
    armed_ = true;
  }
  return {};
}

FaultPoint::Counts::~Counts() {
  if (path.empty()) return;
  Faults& all = faults();
  const std::lock_guard<std::mutex> lock(all.mutex);
  std::ofstream out(path);
  for (const auto& [name, site] : all.sites) {
    out << name << " " << site.passes << " " << site.may_return << "\n";
  }
}

}  // namespace capstan
