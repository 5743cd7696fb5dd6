// SPDX-License-Identifier: Apache-2.0
//
// Kernels, instructions and counts as text.
#ifndef CAPSTAN_TESTING_PTX_REPORT_H_
#define CAPSTAN_TESTING_PTX_REPORT_H_

#include <cstdint>
#include <map>
#include <string>

#include "testing/ptx/program.h"

namespace capstan::ptx {

// Of a mangled name, without scopes and arguments: "RopeKernel<BFloat16, 8>".
std::string ShortName(const std::string& mangled);

// Of a mangled variable, without where it is declared: "tile".
std::string VariableName(const std::string& mangled);

// "ld.global.f32 of rope.ptx:12, elementwise.cu:31".
std::string PlaceOf(const Program& program, int instruction);

// Of all instructions of a kernel, in numbers of a warp.
struct Totals {
  int64_t executions = 0;
  int64_t generic = 0;  // loads and stores by generic addresses
  int64_t passes = 0, least_passes = 0;  // see Counts
  int64_t sectors = 0, least_sectors = 0;
};
Totals TotalsOf(const Program& program);
// Of the kernels whose short name begins so.
Totals TotalsOfFamily(const std::map<std::string, Program>& programs,
                      const std::string& family);
Totals operator-(const Totals& a, const Totals& b);

// A line for each kernel that has run.
std::string CountsTable(const std::map<std::string, Program>& programs);

}  // namespace capstan::ptx

#endif  // CAPSTAN_TESTING_PTX_REPORT_H_
