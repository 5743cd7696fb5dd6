// SPDX-License-Identifier: Apache-2.0
//
// NVIDIA's libraries as their wheels have them, without a GPU and without the
// loader's cache. Skipped where the build hasn't fetched them;
// --repo_env=CAPSTAN_GPU=on does.
#include "cluster/comm/cuda_libraries.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <link.h>
#include <stdlib.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/machine.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;

namespace fs = std::filesystem;

// Where the loader has it from; empty if it isn't loaded.
std::string PlaceOf(const char* library) {
  void* const opened = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  link_map* map = nullptr;
  if (opened == nullptr || dlinfo(opened, RTLD_DI_LINKMAP, &map) != 0) {
    return "";
  }
  return RealFolderOf(map->l_name);
}

std::string Runfile(const std::string& path) {
  return absl::StrCat(getenv("TEST_SRCDIR"), "/capstan/", path);
}

// The error, or "".
std::string Open(const std::string& path, int how = RTLD_NOW | RTLD_LOCAL) {
  return dlopen(path.c_str(), how) != nullptr ? "" : dlerror();
}

template <typename Function>
Function* Find(const char* library, const char* name) {
  return reinterpret_cast<Function*>(
      dlsym(dlopen(library, RTLD_LAZY | RTLD_NOLOAD), name));
}

// What the compiler says of a program; its machine code's size in *bytes.
std::string CompileFor(const char* architecture, size_t* bytes) {
  constexpr char kLibrary[] = "libnvrtc.so.13";
  constexpr char kProgram[] =
      "#include <cuda_fp16.h>\n"
      "extern \"C\" __global__ void Twice(__half* x) {\n"
      "  x[threadIdx.x] = __hadd(x[threadIdx.x], x[threadIdx.x]);\n"
      "}\n";
  // The header is one of the compiler's own only by what it declares.
  constexpr char kHeader[] =
      "struct __half { unsigned short bits; };\n"
      "__device__ inline __half __hadd(__half a, __half b) {\n"
      "  __half c;\n"
      "  asm(\"add.f16 %0, %1, %2;\" : \"=h\"(c.bits) : \"h\"(a.bits), "
      "\"h\"(b.bits));\n"
      "  return c;\n"
      "}\n";
  const auto create =
      Find<int(void**, const char*, const char*, int, const char* const*,
               const char* const*)>(kLibrary, "nvrtcCreateProgram");
  const auto compile = Find<int(void*, int, const char* const*)>(
      kLibrary, "nvrtcCompileProgram");
  const auto log_size =
      Find<int(void*, size_t*)>(kLibrary, "nvrtcGetProgramLogSize");
  const auto log_of = Find<int(void*, char*)>(kLibrary, "nvrtcGetProgramLog");
  const auto size_of = Find<int(void*, size_t*)>(kLibrary, "nvrtcGetCUBINSize");
  if (create == nullptr || compile == nullptr || log_size == nullptr ||
      log_of == nullptr || size_of == nullptr) {
    return "libnvrtc lacks a function";
  }
  void* program = nullptr;
  const char* const header = kHeader;
  const char* const header_name = "cuda_fp16.h";
  if (create(&program, kProgram, "twice.cu", 1, &header, &header_name) != 0) {
    return "nvrtcCreateProgram failed";
  }
  const std::string option = absl::StrCat("--gpu-architecture=", architecture);
  const char* const options = option.c_str();
  const int error = compile(program, 1, &options);
  size_t length = 0;
  log_size(program, &length);
  std::string log(length, '\0');
  log_of(program, log.data());
  if (error != 0) return absl::StrCat("error ", error, ": ", log.c_str());
  return size_of(program, bytes) == 0 ? "" : "nvrtcGetCUBINSize failed";
}

class CudaLibrariesTest : public testing::Test {
 protected:
  void SetUp() override {
    libtorch_ = PlaceOf("libtorch_cpu.so");
    ASSERT_NE(libtorch_, "");
    if (NvidiaFolders(libtorch_).empty() || !HasLibrary("libcublas.so.13")) {
      GTEST_SKIP() << "NVIDIA's libraries aren't fetched";
    }
  }

  bool HasLibrary(const std::string& name) const {
    for (const std::string& folder : NvidiaFolders(libtorch_)) {
      if (fs::exists(folder + "/" + name)) return true;
    }
    return false;
  }

  std::string libtorch_;
};

TEST_F(CudaLibrariesTest, OpenFromTheWheelsAlone) {
  const absl::Status loaded = LoadLibTorchCuda();
  ASSERT_TRUE(loaded.ok()) << loaded;
  EXPECT_EQ(PlaceOf("libtorch_cuda.so"), libtorch_);
  for (const char* name :
       {"libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9", "libnccl.so.2",
        "libnvrtc.so.13", "libnvrtc-builtins.so.13.0", "libnvJitLink.so.13"}) {
    // By its name, as those who open it later ask.
    const std::string place = PlaceOf(name);
    EXPECT_TRUE(absl::StrContains(place, "/nvidia/")) << name << ": " << place;
  }
  EXPECT_EQ(Open(Runfile("cluster/comm/nccl/libcapstan_nccl.so")), "");
  EXPECT_EQ(Open(Runfile("kernels/cuda/libcapstan_kernels_cuda.so")), "");
}

// cuDNN's attention compiles its kernel at the first call.
TEST_F(CudaLibrariesTest, TheCompilerFindsItsParts) {
  const absl::Status loaded = LoadLibTorchCuda();
  ASSERT_TRUE(loaded.ok()) << loaded;
  for (const char* architecture : {"sm_80", "sm_90", "sm_100"}) {
    size_t bytes = 0;
    EXPECT_EQ(CompileFor(architecture, &bytes), "") << architecture;
    EXPECT_GT(bytes, 1000u) << architecture;
  }
  for (const char* part :
       {"libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"}) {
    const std::string cudnn = PlaceOf("libcudnn.so.9");
    EXPECT_EQ(Open(absl::StrCat(cudnn, "/", part), RTLD_LAZY), "");
  }
}

// The same again where the loader knows no library but by its path.
TEST_F(CudaLibrariesTest, WithoutTheLoadersCache) {
  constexpr char kInside[] = "CAPSTAN_TEST_WITHOUT_CACHE";
  if (getenv(kInside) != nullptr) return;
  const std::string program = fs::canonical("/proc/self/exe");
  const std::string command =
      absl::StrCat(kInside, "=1 /lib64/ld-linux-x86-64.so.2 --inhibit-cache '",
                   program, "' --gtest_filter='CudaLibrariesTest.*'");
  EXPECT_EQ(system(command.c_str()), 0) << command;
}

TEST(NvidiaFoldersTest, OfBazelAndDistAndPip) {
  std::string root = testing::TempDir() + "/nvidia_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  const std::string bazel = root + "/external/libtorch/site/torch/lib";
  const std::string dist = root + "/dist/lib";
  for (const std::string& folder :
       {bazel, root + "/external/nvidia/site/nvidia/cudnn/lib",
        root + "/external/nvidia/site/nvidia/cu13/lib",
        root + "/external/nvidia/site/nvidia/nccl/include",
        root + "/external/libtorch/site/nvidia/cu13/lib",
        dist + "/nvidia/cu13/lib"}) {
    fs::create_directories(folder);
  }
  std::vector<std::string> found = NvidiaFolders(bazel);
  for (std::string& folder : found) {
    folder = fs::relative(fs::canonical(folder), root);
  }
  EXPECT_THAT(found, ElementsAre("external/nvidia/site/nvidia/cu13/lib",
                                 "external/nvidia/site/nvidia/cudnn/lib",
                                 "external/libtorch/site/nvidia/cu13/lib"));
  EXPECT_THAT(NvidiaFolders(dist), ElementsAre(dist + "/nvidia/cu13/lib"));
  EXPECT_TRUE(NvidiaFolders(root + "/none").empty());
  fs::remove_all(root);
}

}  // namespace
}  // namespace capstan
