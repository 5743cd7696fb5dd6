// SPDX-License-Identifier: Apache-2.0
#include "testing/standin/runtime/settings.h"

#include <cstdio>
#include <cstdlib>
#include <map>

#include "testing/standin/device.h"

namespace capstan::standin {
namespace {

[[noreturn]] void Refuse(const std::string& setting) {
  std::fprintf(stderr,
               "CAPSTAN_STANDIN: '%s' isn't a setting (testing/standin/"
               "README.md has them)\n",
               setting.c_str());
  std::_Exit(2);
}

std::map<std::string, std::string> Parse() {
  std::map<std::string, std::string> values;
  const char* const variable = std::getenv("CAPSTAN_STANDIN");
  std::string rest = variable == nullptr ? "" : variable;
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    if (one.empty()) continue;
    const size_t equals = one.find('=');
    values[one.substr(0, equals)] =
        equals == std::string::npos ? "1" : one.substr(equals + 1);
  }
  return values;
}

const std::map<std::string, std::string>& Values() {
  static const auto* const values = new auto(Parse());
  return *values;
}

int64_t Bytes(const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  const std::string unit = end;
  const double factor = unit == "T"    ? 1024.0 * (1 << 30)
                        : unit == "G"  ? 1 << 30
                        : unit == "M"  ? 1 << 20
                        : unit == "K"  ? 1 << 10
                        : unit.empty() ? 1
                                       : 0;
  if (number <= 0 || factor == 0) Refuse("memory=" + text);
  return static_cast<int64_t>(number * factor);
}

Settings Read() {
  Settings read;
  read.gpus = std::atoi(Setting("gpus", "1").c_str());
  if (read.gpus < 0 || read.gpus > 16) Refuse("gpus=" + Setting("gpus", ""));
  read.gpu = Setting("gpu", read.gpu);
  if (const std::string memory = Setting("memory", ""); !memory.empty()) {
    read.memory = Bytes(memory);
  }
  if (const std::string taken = Setting("occupied", ""); !taken.empty()) {
    read.occupied = Bytes(taken);
  }
  const std::string order = Setting("order", "late");
  if (order == "eager") {
    read.order = Order::kEager;
  } else if (order.rfind("random", 0) == 0) {
    read.order = Order::kRandom;
    if (order.size() > 7) {
      read.seed = std::strtoull(order.c_str() + 7, nullptr, 10);
    }
  } else if (order != "late") {
    Refuse("order=" + order);
  }
  read.paper = !Setting("paper", "").empty();
  read.host_code = !Setting("host_code", "").empty();
  if (read.host_code && !read.paper) Refuse("host_code (without paper)");
  read.report = Setting("report", "");
  read.trace = Setting("trace", "");
  if (const std::string fault = Setting("fault", ""); !fault.empty()) {
    const size_t colon = fault.find(':');
    if (colon == std::string::npos) Refuse("fault=" + fault);
    read.fault = fault.substr(0, colon);
    read.fault_at = std::atoll(fault.c_str() + colon + 1);
    if (read.fault != "malloc" && read.fault != "launch" &&
        read.fault != "collective" && read.fault != "stall" &&
        read.fault != "skip") {
      Refuse("fault=" + fault);
    }
  }
  if (const std::string idle = Setting("idle_ms", ""); !idle.empty()) {
    read.idle_ns = static_cast<int64_t>(1e6 * std::atof(idle.c_str()));
  }
  return read;
}

}  // namespace

std::string Setting(const std::string& name, const std::string& absent) {
  const auto found = Values().find(name);
  return found == Values().end() ? absent : found->second;
}

const Settings& TheSettings() {
  static const Settings* const settings = new Settings(Read());
  return *settings;
}

}  // namespace capstan::standin
