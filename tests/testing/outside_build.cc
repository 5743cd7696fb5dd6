// SPDX-License-Identifier: Apache-2.0
#include "tests/testing/outside_build.h"

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "tests/testing/run_folder.h"

namespace capstan {

namespace fs = std::filesystem;

ShellResult Shell(const std::string& folder, const std::string& command) {
  const std::string log = NewTestFolder("shell") + "/log";
  const int status = std::system(
      absl::StrCat("cd '", folder, "' && (", command, ") > '", log, "' 2>&1")
          .c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, ReadText(log)};
}

bool HasTool(const std::string& tool) {
  return Shell(".", "command -v " + tool).exit_code == 0;
}

bool CanBuildOutside() {
  return HasTool("make") && HasTool("g++") && HasTool("protoc");
}

std::string SdkFolder() {
  return fs::absolute(Runfile("sdk/capstan_sdk")).string();
}

// Headers aren't among a test's data.
std::string TorchFolder() {
  const fs::path library =
      Runfile("../libtorch/site/torch/lib/libtorch_cpu.so");
  return fs::canonical(library).parent_path().parent_path().string();
}

ShellResult Make(const std::string& folder, const std::string& arguments,
                 const std::string& sdk) {
  return Shell(folder,
               absl::StrCat("make ", arguments, " 'CAPSTAN_SDK=", sdk,
                            "' 'CAPSTAN_TORCH_DIR=", TorchFolder(), "'"));
}

}  // namespace capstan
