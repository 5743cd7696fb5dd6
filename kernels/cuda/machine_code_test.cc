// SPDX-License-Identifier: Apache-2.0
//
// What nvcc made of the kernels, for each architecture of tools/cuda.bzl: no
// local memory (spilled registers, indexed arrays), bounds on the block's size,
// registers and occupancy, 128-bit accesses in the variants for vectors, and no
// generic addresses in loops. Prints registers, shared memory and occupancy.
//
// PTX tells which accesses are asked for, SASS that ptxas kept them.
#include <cxxabi.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "kernels/cuda/cuda_kernels.h"

namespace capstan {
namespace {

// "Technical Specifications per Compute Capability" of the CUDA C++ Programming
// Guide 13.0.
struct Architecture {
  const char* name;
  int threads;  // of a multiprocessor
  int blocks;
  int shared_bytes;
};
constexpr Architecture kArchitectures[] = {
    {"sm_80", 2048, 32, 164 << 10},
    {"sm_90", 2048, 32, 228 << 10},
    {"sm_100", 2048, 32, 228 << 10},
    {"sm_120", 1536, 24, 100 << 10},
};
constexpr int kRegisters = 65536;      // of a multiprocessor
constexpr int kRegisterUnit = 256;     // that a warp gets at once
constexpr int kReservedShared = 1024;  // bytes of a block, for CUDA

// What the variants for vectors access by 16 bytes.
struct Vectors {
  bool loads = false, stores = false;
};
const std::map<std::string, Vectors>& VectorKernels() {
  static const auto* const kernels = new std::map<std::string, Vectors>{
      {"AdamW8BitKernel", {true, true}},
      {"AdamWKernel", {true, true}},
      {"CrossEntropyKernel", {true, true}},
      {"DequantizeNf4Kernel", {false, true}},  // eight values in 4 bytes
      {"DropoutKernel", {true, true}},
      {"EmbeddingBackwardKernel", {true, true}},
      {"RmsNormBackwardKernel", {true, true}},
      {"RmsNormKernel", {true, true}},
      {"RopeKernel", {true, true}},
      {"SquaredSumKernel", {true, false}},  // to one number
      {"SumChosenKernel", {true, true}},
      {"SwiGluBackwardKernel", {true, true}},
      {"SwiGluKernel", {true, true}},
  };
  return *kernels;
}

// At most so many registers, and at least so many percent of a multiprocessor's
// threads at once, in all variants and on all architectures.
struct Limits {
  int registers, occupancy;
};
const std::map<std::string, Limits>& KernelLimits() {
  static const auto* const limits = new std::map<std::string, Limits>{
      {"AdamW8BitKernel", {64, 50}},
      {"AdamWKernel", {48, 62}},
      {"CastRowsKernel", {48, 62}},
      {"CastTurnedKernel", {40, 75}},
      {"ColumnScalesKernel", {40, 75}},
      {"CrossEntropyKernel", {40, 75}},
      {"DequantizeNf4Kernel", {32, 100}},
      {"DropoutKernel", {32, 100}},
      {"EmbeddingBackwardKernel", {40, 75}},
      {"GreatestKernel", {56, 62}},
      {"GroupChoicesKernel", {48, 62}},
      {"RmsNormBackwardKernel", {80, 33}},
      {"RmsNormKernel", {40, 75}},
      {"RopeKernel", {48, 62}},
      {"SquaredSumKernel", {48, 62}},
      {"SumChosenKernel", {48, 62}},
      {"SumLossesKernel", {32, 66}},
      {"SumPartialsKernel", {32, 66}},
      {"SumRowsKernel", {64, 66}},
      {"SwiGluBackwardKernel", {48, 62}},
      {"SwiGluKernel", {40, 75}},
  };
  return *limits;
}

// Bytes of shared memory that a launch adds, at most.
int DynamicShared(const std::string& name) {
  using kernels::cuda::kRmsNormSharedColumns;
  using kernels::cuda::RmsNormSharedBytes;
  const bool sums = absl::StartsWith(name, "RmsNormBackwardKernel<") &&
                    absl::StrContains(name, ", true, ");
  return sums ? static_cast<int>(RmsNormSharedBytes(kRmsNormSharedColumns)) : 0;
}

struct Usage {
  int registers = 0, stack = 0, spills = 0, shared = 0;
};
struct Kernel {
  std::map<std::string, Usage> usage;  // by architecture
  int threads = 0;                     // at most in a block
  bool loads = false, stores = false;  // 128 bits at once, in PTX
};
// By short name: "RopeKernel<BFloat16, 8>".
using Kernels = std::map<std::string, Kernel>;

std::string Contents(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string ShortName(const std::string& mangled) {
  int status = 0;
  char* demangled =
      abi::__cxa_demangle(mangled.c_str(), nullptr, nullptr, &status);
  std::string name = status == 0 ? demangled : mangled;
  std::free(demangled);
  // Without result, scopes and arguments.
  static const std::regex* const kScope =
      new std::regex(R"(^void |\(anonymous namespace\)::|\w+::)");
  name = std::regex_replace(name, *kScope, "");
  return name.substr(0, name.find('('));
}

// Whether it is a variant for vectors: its last number is above 1, and no flag
// says otherwise.
bool IsVector(const std::string& name) {
  static const std::regex* const kWidth =
      new std::regex(R"([ <](\d+)(, true)?>$)");
  std::smatch match;
  return std::regex_search(name, match, *kWidth) && std::stoi(match[1]) > 1;
}

std::string Family(const std::string& name) {
  return name.substr(0, name.find('<'));
}

void ReadPtxas(const std::string& text, Kernels& kernels) {
  static const std::regex* const kEntry =
      new std::regex(R"(Compiling entry function '(\w+)' for '(\w+)')");
  static const std::regex* const kStack = new std::regex(
      R"((\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill)");
  static const std::regex* const kUsed =
      new std::regex(R"(Used (\d+) registers)");
  static const std::regex* const kShared =
      new std::regex(R"((\d+) bytes smem)");
  Usage* usage = nullptr;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    std::smatch match;
    if (std::regex_search(line, match, *kEntry)) {
      usage = &kernels[ShortName(match[1])].usage[match[2]];
    } else if (usage == nullptr) {
      continue;
    } else if (std::regex_search(line, match, *kStack)) {
      usage->stack = std::stoi(match[1]);
      usage->spills = std::stoi(match[2]) + std::stoi(match[3]);
    } else if (std::regex_search(line, match, *kUsed)) {
      usage->registers = std::stoi(match[1]);
      if (std::regex_search(line, match, *kShared)) {
        usage->shared = std::stoi(match[1]);
      }
    }
  }
}

void ReadPtx(const std::string& text, Kernels& kernels) {
  static const std::regex* const kEntry = new std::regex(R"(\.entry (\w+)\()");
  static const std::regex* const kThreads =
      new std::regex(R"(\.maxntid (\d+))");
  // Of global memory, also by a generic address; of parameters none is as wide.
  static const std::regex* const kWide = new std::regex(
      R"(\b(ld|st)(?:\.global)?[.\w]*\.(v4\.[a-z]32|v2\.[a-z]64|[a-z]128))");
  Kernel* kernel = nullptr;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    std::smatch match;
    if (std::regex_search(line, match, *kEntry)) {
      kernel = &kernels[ShortName(match[1])];
    } else if (kernel == nullptr) {
      continue;
    } else if (std::regex_search(line, match, *kThreads)) {
      kernel->threads = std::stoi(match[1]);
    } else if (std::regex_search(line, match, *kWide)) {
      (match[1] == "ld" ? kernel->loads : kernel->stores) = true;
    }
  }
}

std::vector<std::filesystem::path> Files(absl::string_view suffix) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator("kernels/cuda")) {
    if (absl::EndsWith(entry.path().string(), suffix)) {
      files.push_back(entry.path());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

const Kernels& AllKernels() {
  static const Kernels* const kernels = [] {
    auto* all = new Kernels;
    for (const auto& file : Files(".ptxas.txt"))
      ReadPtxas(Contents(file), *all);
    for (const auto& file : Files(".ptx")) ReadPtx(Contents(file), *all);
    return all;
  }();
  return *kernels;
}

int RoundUp(int x, int unit) { return (x + unit - 1) / unit * unit; }

// Blocks of `threads` that a multiprocessor holds; dynamic: bytes of shared
// memory beside the kernel's own.
int Blocks(const Architecture& gpu, const Usage& usage, int threads,
           int dynamic) {
  const int warps = RoundUp(threads, 32) / 32;
  const int of_a_warp = RoundUp(usage.registers * 32, kRegisterUnit);
  return std::min(
      {gpu.blocks, gpu.threads / (warps * 32),
       kRegisters / (std::max(1, of_a_warp) * warps),
       gpu.shared_bytes / (usage.shared + dynamic + kReservedShared)});
}

// The folder of cuobjdump and nvdisasm.
constexpr char kDisassembler[] = "external/disassembler/site/nvidia/cu13/bin";

std::string Sass(const std::filesystem::path& object,
                 const char* architecture) {
  const std::string command =
      absl::StrCat("PATH=", kDisassembler, ":\"$PATH\" cuobjdump -sass -arch ",
                   architecture, " '", object.string(), "' 2>&1");
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "";
  std::string text;
  char buffer[1 << 16];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
    text.append(buffer, n);
  }
  pclose(pipe);
  return text;
}

// What a kernel's SASS has.
struct Code {
  Vectors wide;  // accesses of 128 bits or more
  // Loads, stores and atomics by generic addresses that lie in loops.
  std::vector<std::string> generic_in_loops;
};

// An instruction's address, "/*01f0*/", and a branch's target, "BRA 0x1f0 ;".
int AddressOf(const std::string& line) {
  return std::stoi(line.substr(line.find("/*") + 2), nullptr, 16);
}
int TargetOf(const std::string& line) {
  const size_t at = line.rfind("0x", line.find(';'));
  return at == std::string::npos ? INT_MAX
                                 : std::stoi(line.substr(at), nullptr, 16);
}

// A loop is what lies between a branch and its target before it.
void FindGeneric(const std::vector<std::string>& lines, Code& code) {
  static const std::regex* const kGeneric =
      new std::regex(R"([ \t](LD|ST|ATOM)(\.[.\w]*)? )");
  std::vector<std::pair<int, int>> loops;
  for (const std::string& line : lines) {
    if (!absl::StrContains(line, "BRA")) continue;
    const int from = TargetOf(line), to = AddressOf(line);
    if (from < to) loops.push_back({from, to});
  }
  for (const std::string& line : lines) {
    if (!std::regex_search(line, *kGeneric)) continue;
    const int at = AddressOf(line);
    for (const auto& [from, to] : loops) {
      if (at < from || at > to) continue;
      code.generic_in_loops.push_back(line);
      break;
    }
  }
}

void FindWide(const std::vector<std::string>& lines, Code& code) {
  static const std::regex* const kWide =
      new std::regex(R"(\b(LD|ST)G?\.E[.\w]*\.(128|256))");
  std::smatch match;
  for (const std::string& line : lines) {
    if (!absl::StrContains(line, ".E.") ||
        !std::regex_search(line, match, *kWide)) {
      continue;
    }
    (match[1] == "LD" ? code.wide.loads : code.wide.stores) = true;
  }
}

// By kernel, as in Kernels.
std::map<std::string, Code> ReadSass(const std::string& sass) {
  static const std::regex* const kFunction =
      new std::regex(R"(Function : (\w+))");
  std::map<std::string, std::vector<std::string>> lines;
  std::vector<std::string>* kernel = nullptr;
  for (const absl::string_view line : absl::StrSplit(sass, '\n')) {
    // "  /*01f0*/  @!P1 BRA 0x630 ;  /* code */", and lines of code alone.
    const std::string text(line.substr(0, line.find(';') + 1));
    std::smatch match;
    const std::string whole(line);
    if (absl::StrContains(line, "Function :") &&
        std::regex_search(whole, match, *kFunction)) {
      kernel = &lines[ShortName(match[1])];
    } else if (kernel != nullptr && absl::StrContains(text, "/*")) {
      kernel->push_back(text);
    }
  }
  std::map<std::string, Code> all;
  for (const auto& [name, its_lines] : lines) {
    FindWide(its_lines, all[name]);
    FindGeneric(its_lines, all[name]);
  }
  return all;
}

TEST(MachineCode, TakesNoLocalMemoryAndKeepsItsLimits) {
  ASSERT_FALSE(AllKernels().empty());
  absl::PrintF("%-44s %7s", "registers, shared bytes, occupancy", "threads");
  for (const Architecture& gpu : kArchitectures)
    absl::PrintF(" %16s", gpu.name);
  absl::PrintF("\n");
  for (const auto& [name, kernel] : AllKernels()) {
    SCOPED_TRACE(name);
    absl::PrintF("%-44s %7d", name, kernel.threads);
    EXPECT_GT(kernel.threads, 0) << "add __launch_bounds__";
    ASSERT_EQ(KernelLimits().count(Family(name)), 1)
        << "say in KernelLimits what it may take";
    const Limits limits = KernelLimits().at(Family(name));
    for (const Architecture& gpu : kArchitectures) {
      SCOPED_TRACE(gpu.name);
      ASSERT_EQ(kernel.usage.count(gpu.name), 1) << "no code for it";
      const Usage& usage = kernel.usage.at(gpu.name);
      EXPECT_GT(usage.registers, 0);
      EXPECT_EQ(usage.spills, 0) << "bytes of spilled registers";
      EXPECT_EQ(usage.stack, 0) << "bytes of local memory";
      EXPECT_LE(usage.registers, limits.registers);
      const int dynamic = DynamicShared(name);
      const int blocks =
          Blocks(gpu, usage, std::max(kernel.threads, 32), dynamic);
      const double occupancy = 100.0 * blocks * kernel.threads / gpu.threads;
      EXPECT_GE(occupancy, limits.occupancy)
          << usage.registers << " registers, " << usage.shared + dynamic
          << " bytes of shared memory";
      absl::PrintF(" %3d %6d %4.0f%%", usage.registers, usage.shared + dynamic,
                   occupancy);
    }
    absl::PrintF("\n");
  }
}

TEST(MachineCode, OfVectorsAsksFor128Bits) {
  int vectors = 0;
  for (const auto& [name, kernel] : AllKernels()) {
    if (!IsVector(name)) continue;
    SCOPED_TRACE(name);
    ++vectors;
    const auto it = VectorKernels().find(Family(name));
    ASSERT_NE(it, VectorKernels().end()) << "say in VectorKernels what it does";
    EXPECT_EQ(kernel.loads, it->second.loads);
    EXPECT_EQ(kernel.stores, it->second.stores);
  }
  EXPECT_GE(vectors, static_cast<int>(VectorKernels().size()));
}

TEST(MachineCode, KeepsVectorsAndHasNoGenericAddressesInLoops) {
  for (const Architecture& gpu : kArchitectures) {
    SCOPED_TRACE(gpu.name);
    std::map<std::string, Code> all;
    for (const auto& object : Files(".cu.o")) {
      all.merge(ReadSass(Sass(object, gpu.name)));
    }
    ASSERT_EQ(all.size(), AllKernels().size());
    for (const auto& [name, code] : all) {
      SCOPED_TRACE(name);
      EXPECT_THAT(code.generic_in_loops, ::testing::IsEmpty());
      if (!IsVector(name)) continue;
      const Vectors meant = VectorKernels().at(Family(name));
      EXPECT_TRUE(code.wide.loads || !meant.loads) << "no 128-bit load";
      EXPECT_TRUE(code.wide.stores || !meant.stores) << "no 128-bit store";
    }
  }
}

// The checks themselves, on what ptxas would say of worse kernels.
TEST(MachineCode, IsReadRight) {
  Kernels kernels;
  ReadPtxas(
      "ptxas info    : Compiling entry function '_Z4FarrIfLi4EEvv' for "
      "'sm_90'\n"
      "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 128 bytes smem\n",
      kernels);
  ASSERT_EQ(kernels.count("Farr<float, 4>"), 1);
  const Usage& usage = kernels.at("Farr<float, 4>").usage.at("sm_90");
  EXPECT_EQ(usage.spills, 16);
  EXPECT_EQ(usage.stack, 8);
  EXPECT_EQ(usage.shared, 128);
  EXPECT_EQ(Blocks(kArchitectures[1], usage, 512, 0), 0);
  EXPECT_EQ(Blocks(kArchitectures[1], usage, 256, 0), 1);
  EXPECT_EQ(Blocks(kArchitectures[1], usage, 32, 0), 8);
  EXPECT_EQ(Blocks(kArchitectures[1], usage, 32, 48000), 4);
  EXPECT_TRUE(IsVector("Farr<float, 4>"));
  EXPECT_FALSE(IsVector("Farr<float, 1>"));
  EXPECT_FALSE(IsVector("Farr<float, 4, false>"));
  ReadPtx(
      ".entry _Z4FarrIfLi4EEvv(\n.maxntid 256, 1, 1\n"
      "\tld.global.v2.f32 {%f1, %f2}, [%rd1];\n"
      "\tst.global.v4.f32 [%rd1], {%f1, %f2, %f1, %f2};\n",
      kernels);
  EXPECT_EQ(kernels.at("Farr<float, 4>").threads, 256);
  EXPECT_FALSE(kernels.at("Farr<float, 4>").loads);
  EXPECT_TRUE(kernels.at("Farr<float, 4>").stores);
  const auto code = ReadSass(
      "\t\tFunction : _Z4FarrIfLi4EEvv\n"
      "        /*00f0*/   LD.E R2, desc[UR10][R10.64] ;  /* 0x0000 */\n"
      "                                                  /* 0x0947 */\n"
      "        /*0100*/   LDG.E.64 R10, desc[UR10][R10.64] ;\n"
      "        /*0110*/   @P0 STG.E.128 desc[UR10][R6.64], R8 ;\n"
      "        /*0120*/   @P1 ST.E desc[UR10][R6.64], R8 ;\n"
      "        /*0130*/   @P1 BRA.U UP0, 0x100 ;\n"
      "        /*0140*/   BRA 0x160 ;\n"
      "        /*0150*/   LD.E R2, desc[UR10][R10.64] ;\n");
  const Code& farr = code.at("Farr<float, 4>");
  EXPECT_FALSE(farr.wide.loads);
  EXPECT_TRUE(farr.wide.stores);
  EXPECT_THAT(farr.generic_in_loops,
              ::testing::ElementsAre(::testing::HasSubstr("ST.E desc")));
}

}  // namespace
}  // namespace capstan
