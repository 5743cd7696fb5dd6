// SPDX-License-Identifier: Apache-2.0
#include "testing/ptx/report.h"

#include <cxxabi.h>

#include <cstdlib>
#include <regex>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan::ptx {
namespace {

std::string FileName(const std::string& path) {
  return path.substr(path.rfind('/') + 1);
}

std::string Demangled(const std::string& mangled) {
  int status = 0;
  char* demangled =
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  return name;
}

}  // namespace

std::string VariableName(const std::string& mangled) {
  const std::string name = Demangled(mangled);
  return name.substr(name.rfind(':') + 1);
}

std::string ShortName(const std::string& mangled) {
  std::string name = Demangled(mangled);
  static const std::regex* const kScope =
      new std::regex(R"(^void |\(anonymous namespace\)::|\w+::)");
  name = std::regex_replace(name, *kScope, "");
  return name.substr(0, name.find('('));
}

std::string PlaceOf(const Program& program, int instruction) {
  const Statement& statement = program.kernel->body[instruction];
  std::string place =
      absl::StrCat(statement.opcode, " of ", FileName(program.module->path),
                   ":", statement.line);
  const auto file = program.module->files.find(statement.file);
  if (file != program.module->files.end()) {
    absl::StrAppend(&place, ", ", FileName(file->second), ":",
                    statement.source_line);
  }
  return place;
}

namespace {

// a + sign * b
Totals Sum(const Totals& a, const Totals& b, int sign) {
  return {a.executions + sign * b.executions,
          a.generic + sign * b.generic,
          a.passes + sign * b.passes,
          a.least_passes + sign * b.least_passes,
          a.sectors + sign * b.sectors,
          a.least_sectors + sign * b.least_sectors};
}

}  // namespace

Totals operator-(const Totals& a, const Totals& b) { return Sum(a, b, -1); }

Totals TotalsOf(const Program& program) {
  Totals totals;
  for (size_t i = 0; i < program.code.size(); ++i) {
    const Instruction& instruction = program.code[i];
    const Counts& counts = program.counts[i];
    const bool generic =
        (instruction.kind == Kind::kLoad || instruction.kind == Kind::kStore) &&
        instruction.space == Space::kGeneric;
    totals =
        Sum(totals,
            {counts.executions, generic ? counts.executions : 0, counts.passes,
             counts.least_passes, counts.sectors, counts.least_sectors},
            1);
  }
  return totals;
}

Totals TotalsOfFamily(const std::map<std::string, Program>& programs,
                      const std::string& family) {
  Totals totals;
  for (const auto& [name, program] : programs) {
    if (absl::StartsWith(ShortName(name), family)) {
      totals = Sum(totals, TotalsOf(program), 1);
    }
  }
  return totals;
}

std::string CountsTable(const std::map<std::string, Program>& programs) {
  std::string table = absl::StrFormat(
      "%-44s %12s %9s %10s %8s %10s %8s\n", "of warps", "instructions",
      "generic", "passes", "of least", "sectors", "of least");
  for (const auto& [name, program] : programs) {
    const Totals t = TotalsOf(program);
    if (t.executions == 0) continue;
    const auto ratio = [](int64_t a, int64_t b) {
      return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
    };
    absl::StrAppendFormat(&table, "%-44s %12d %9d %10d %8.2f %10d %8.2f\n",
                          ShortName(name), t.executions, t.generic, t.passes,
                          ratio(t.passes, t.least_passes), t.sectors,
                          ratio(t.sectors, t.least_sectors));
  }
  return table;
}

}  // namespace capstan::ptx
