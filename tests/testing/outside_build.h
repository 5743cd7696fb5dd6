// SPDX-License-Identifier: Apache-2.0
//
// Building plugins as those do who have the SDK folder and no Bazel.
#ifndef CAPSTAN_TESTS_TESTING_OUTSIDE_BUILD_H_
#define CAPSTAN_TESTS_TESTING_OUTSIDE_BUILD_H_

#include <string>

namespace capstan {

struct ShellResult {
  int exit_code;
  std::string output;
};

ShellResult Shell(const std::string& folder, const std::string& command);

// Whether make, g++ and protoc are there; if not, skip the test.
bool CanBuildOutside();
bool HasTool(const std::string& tool);

std::string SdkFolder();
// LibTorch's, of the build.
std::string TorchFolder();

// `make ARGUMENTS` in a folder that `trainer new-plugin` has written.
ShellResult Make(const std::string& folder, const std::string& arguments,
                 const std::string& sdk = SdkFolder());

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_OUTSIDE_BUILD_H_
