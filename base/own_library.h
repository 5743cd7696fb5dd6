// SPDX-License-Identifier: Apache-2.0
//
// The trainer's shared libraries that are opened when they are needed. A clone
// builds with //trainer what a first run needs; the rest it builds when it is
// needed, or when its sources have changed (trainer/own_libraries.bzl).
#ifndef CAPSTAN_BASE_OWN_LIBRARY_H_
#define CAPSTAN_BASE_OWN_LIBRARY_H_

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"

namespace capstan {

// A clone that Bazel has built a core in.
class Clone {
 public:
  // The clone in whose output folder `folder`, that of a core, lies; nullopt if
  // it lies in none.
  static absl::optional<Clone> Of(const std::string& folder);
  // That of this core. None if this is //:dist's or a package's, or a test
  // runs, within which Bazel can't build.
  static absl::optional<Clone> OfCore();

  // Libraries to be built before they are opened: their paths below the core's
  // folder ("plugins/libcapstan_grpo.so").
  std::vector<std::string> Unbuilt() const;
  bool IsUnbuilt(const std::string& path) const;

  // Has Bazel build those of `paths` that are Unbuilt. Says so, and shows
  // Bazel's progress, on standard error; a process that asks while another
  // builds waits for that. `what`: what is built, for the line that says so.
  // Errors: FAILED_PRECONDITION, with what to do.
  absl::Status Build(const std::vector<std::string>& paths,
                     absl::string_view what) const;

 private:
  Clone() = default;
  bool IsBuilt(const std::string& path, const std::string& digest) const;
  absl::Status RunBazel(const std::vector<std::string>& targets,
                        absl::string_view what) const;

  std::string root_;         // the workspace
  std::string output_base_;  // Bazel's, for it
  std::string folder_;       // the core's
  // Digests of the sources of what the core may open, when it was built.
  std::map<std::string, std::string> digests_;
};

// Looks for the library `name`, which Bazel builds in `package`
// ("kernels/cuda"): from the folders of the core and of the program upwards, in
// each of them, in `package` below it, and in lib/ below it, where //:dist puts
// it. Returns its path; "" if there is none.
std::string FindOwnLibrary(absl::string_view name, absl::string_view package);

// The same, but a clone builds lib/NAME first if it has to. `what`: see
// Clone::Build, whose errors it returns.
absl::StatusOr<std::string> OwnLibrary(absl::string_view name,
                                       absl::string_view package,
                                       absl::string_view what);

// Opens `path`, which is to be the library `name`, by dlopen with `mode`, for
// good, and returns where its `symbol` is; for nullptr dlopen's handle. Looks
// first whether it is that library and whole: another one's code would run, and
// one that is cut off would end the process. Errors are RefusedLibrary's.
absl::StatusOr<void*> LibrarySymbol(const std::string& path,
                                    absl::string_view name, const char* symbol,
                                    int mode);

// The same for what OwnLibrary finds, and CheckInterface. For libraries that
// come with the trainer always.
absl::StatusOr<void*> OpenOwnLibrary(absl::string_view name,
                                     absl::string_view package,
                                     absl::string_view what, const char* symbol,
                                     int mode);

// Whether the library at `path`, which takes code of the core, was compiled
// with this core's headers: by their digest, which both have
// (trainer/own_libraries.bzl: interface_mark).
absl::Status CheckInterface(const std::string& path);

// FAILED_PRECONDITION, "PATH is refused: WHY", and what to do.
absl::Status RefusedLibrary(const std::string& path, absl::string_view why);

}  // namespace capstan

#endif  // CAPSTAN_BASE_OWN_LIBRARY_H_
