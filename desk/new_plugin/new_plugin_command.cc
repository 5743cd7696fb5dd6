// SPDX-License-Identifier: Apache-2.0
//
// `trainer new-plugin`: writes a small working plugin to start from: the files
// of new_plugin/ with myvendor, myplugin and MyPlugin replaced.
#include <c10/core/Allocator.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/embedded_files.h"
#include "base/files.h"
#include "base/machine.h"
#include "base/status.h"
#include "host/config/load_config.h"
#include "host/plugins/plugin_host.h"
#include "trainer/commands/command.h"

namespace capstan {

extern const EmbeddedFile kNewPluginFiles[];  // templates/

namespace {

namespace fs = std::filesystem;

struct Category {
  // As --category has it, the folder in new_plugin/, and the suite of
  // tests/conformance.
  const char *name;
  const char *more;  // of the target in BUILD
  // The run in configs/ that the plugin's own config goes over; "": it has
  // none.
  const char *run;
};

constexpr char kRun[] = "run_distributed.pbtxt";
constexpr char kTestData[] = "    test_data = glob([\"testdata/**\"]),\n";
constexpr char kCommand[] = "command";

constexpr std::array<Category, 9> kCategories = {{
    {"collector", "", kRun},
    {kCommand, kTestData, ""},
    {"dataset_reader", kTestData, kRun},
    {"model", "", kRun},
    {"objective", "", kRun},
    {"optimizer", "", kRun},
    {"part",
     "    test_deps = [\"@capstan//plugins/algorithm_distillation:"
     "environment\"],\n"
     "    deps = [\"@capstan//plugins/algorithm_distillation:environment\"],\n",
     "ad_darkroom_quickstart.pbtxt"},
    {"precision", "", kRun},
    {"strategy", "    deps = [\"@capstan//strategies/common\"],\n", kRun},
}};

// What a build without Bazel needs of Debian or Ubuntu, as in sdk/README.md: a
// compiler, what plugins and tests include, and what the core links. cmake may
// take make's place.
constexpr char kPackages[] =
    "g++ make protobuf-compiler libprotobuf-dev libabsl-dev libgtest-dev "
    "libgmock-dev libgoogle-glog-dev libhwloc-dev libisal-dev libpcre2-dev "
    "libsimdjson-dev libssl-dev libutf8proc-dev libyaml-cpp-dev";

struct NewPluginOptions {
  std::string category;  // "optimizer"
  std::string name;      // "acme.lion"
  std::string folder;
  std::string capstan;  // its workspace; empty: to be found
};

// Names that are invalid for a namespace or would hide another, sorted.
constexpr char kTaken[] =
    "absl alignas alignof and and_eq asm at auto bitand bitor bool break "
    "c10 capstan case catch char char16_t char32_t char8_t class co_await "
    "co_return co_yield compl concept config const const_cast consteval "
    "constexpr constinit continue decltype default delete do double "
    "dynamic_cast else enum errno explicit export extern false float for "
    "friend google goto if inline int linux long mutable namespace new "
    "noexcept not not_eq nullptr operator or or_eq private protected public "
    "register reinterpret_cast requires return short signed sizeof static "
    "static_assert static_cast std struct switch template testing this "
    "thread_local throw torch true try typedef typeid typename union unix "
    "unsigned using virtual void volatile wchar_t while xor xor_eq";

bool IsTaken(const std::string &word) {
  const std::vector<std::string> taken = absl::StrSplit(kTaken, ' ');
  return std::binary_search(taken.begin(), taken.end(), word);
}

// [a-z][a-z0-9_]*
bool IsWord(absl::string_view word) {
  return !word.empty() && absl::ascii_islower(word[0]) &&
         std::all_of(word.begin(), word.end(), [](char c) {
           return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_';
         });
}

absl::StatusOr<Category> FindCategory(const std::string &given) {
  const std::string name =
      absl::StrReplaceAll(absl::AsciiStrToLower(given), {{"-", "_"}});
  std::vector<std::string> names;
  for (const Category &category : kCategories) {
    if (category.name == name) return category;
    names.push_back(category.name);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--category=", given, ": there are ", absl::StrJoin(names, ", "),
      DidYouMean(NearestName(name, names))));
}

// "acme.lion"
struct Name {
  std::string vendor;      // "acme"
  std::string plugin;      // "lion"; of a command "command_lion"
  std::string class_name;  // "Lion"
  std::string command;     // `trainer lion`, if it is one
};

// "my_lion" -> "MyLion"
std::string ClassName(absl::string_view words) {
  std::string name;
  for (absl::string_view word : absl::StrSplit(words, '_')) {
    std::string capitalized(word);
    if (!word.empty()) capitalized[0] = absl::ascii_toupper(word[0]);
    name += capitalized;
  }
  return name;
}

absl::StatusOr<Name> ParseName(const std::string &text,
                               const Category &category) {
  const std::vector<std::string> parts = absl::StrSplit(text, '.');
  // The library is libVENDOR_PLUGIN.so: the vendor ends at the first '_'.
  if (parts.size() != 2 || !IsWord(parts[0]) || !IsWord(parts[1]) ||
      absl::StrContains(parts[0], "_")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--name=", text,
        ": it must be VENDOR.NAME, as in acme.lion: small letters and digits, "
        "in NAME also _, each beginning with a letter"));
  }
  for (const std::string &part : parts) {
    if (IsTaken(part)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--name=", text, ": \"", part,
                       "\" means something else in C++ or in the trainer"));
    }
  }
  if (parts[0] == parts[1]) {
    return absl::InvalidArgumentError(
        absl::StrCat("--name=", text, ": vendor and plugin are one word"));
  }
  Name name{parts[0], parts[1], ClassName(parts[1]), ""};
  if (category.name == absl::string_view(kCommand)) {
    // Its package says that it is one, and what follows `trainer`.
    constexpr absl::string_view kPrefix = "command_";
    absl::string_view words = parts[1];
    absl::ConsumePrefix(&words, kPrefix);
    name.plugin = absl::StrCat(kPrefix, words);
    name.class_name = ClassName(words);
    name.command = absl::StrReplaceAll(words, {{"_", "-"}});
    const auto &own = CommandNames();
    if (!IsWord(words) ||
        std::any_of(own.begin(), own.end(), [&](const CommandName &c) {
          return c.name == name.command;
        })) {
      return absl::InvalidArgumentError(
          absl::StrCat("--name=", text, ": `trainer ", name.command,
                       "` can't be a plugin's command"));
    }
  }
  if (name.command.empty() && absl::StartsWith(name.plugin, "command_")) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--name=", text, ": \"command_\" begins a command's name"));
  }
  return name;
}

// Target of a new_plugin/ file below the folder; "" for other categories'
// files.
std::string TargetOf(const std::string &path, const Category &category,
                     const Name &name) {
  const std::string own = absl::StrCat(name.vendor, "/", name.plugin, "/");
  if (path == "BUILD.txt") return own + "BUILD";
  if (path == "bazelrc.txt") return ".bazelrc";
  if (path == "Makefile.txt") return "Makefile";
  if (path == "WORKSPACE.txt") return "WORKSPACE";
  if (path == "CMakeLists.txt") return path;
  const std::string prefix = absl::StrCat(category.name, "/");
  if (!absl::StartsWith(path, prefix)) return "";
  const std::string file = absl::StrReplaceAll(path.substr(prefix.size()),
                                               {{"myplugin", name.plugin}});
  return own + (absl::EndsWith(file, ".txt") ? "testdata/" : "") + file;
}

std::string TextOf(absl::string_view text, const Category &category,
                   const Name &name, const std::string &capstan) {
  // Dropped: the author chooses a licence.
  constexpr absl::string_view kLicense =
      "// SPDX-License-Identifier: Apache-2.0\n";
  if (absl::StartsWith(text, kLicense)) text.remove_prefix(kLicense.size());
  return absl::StrReplaceAll(text, {{"myvendor", name.vendor},
                                    {"myplugin", name.plugin},
                                    {"MyPlugin", name.class_name},
                                    {"mycommand", name.command},
                                    {"CAPSTAN_SUITE", category.name},
                                    {"CAPSTAN_MORE\n", category.more},
                                    {"CAPSTAN_FOLDER", capstan}});
}

absl::Status WriteNew(const fs::path &path, const std::string &text) {
  CAPSTAN_RETURN_IF_ERROR(MakeFolder(path.parent_path().string()));
  return WriteWholeFile(path.string(), text);
}

constexpr char kBeside[] = "../capstan";

// Capstan's workspace: the one named, the caller's, or one beside the plugins'
// `folder`; "" if there is none.
absl::StatusOr<std::string> CapstanFolder(const std::string &named,
                                          const fs::path &folder) {
  const auto is_capstan = [](const fs::path &path) {
    std::error_code error;
    return fs::exists(path / "plugins/sdk/plugin.h", error);
  };
  if (!named.empty()) {
    const std::string path = FromCaller(named);
    if (is_capstan(path)) return path;
    return absl::InvalidArgumentError(
        absl::StrCat("--capstan=", named, ": ", path,
                     " isn't Capstan's workspace (it has no plugins/sdk)"));
  }
  const std::string caller = DefaultConfigContext(nullptr).workspace_folder;
  // `folder` may not exist yet: no ".." through it.
  for (const fs::path &path :
       {fs::path(caller), (folder / kBeside).lexically_normal()}) {
    if (!path.empty() && is_capstan(path)) return path.string();
  }
  return "";
}

// Returns the paths written, relative to the folder.
absl::StatusOr<std::vector<std::string>> WritePlugin(
    const Category &category, const Name &name, const fs::path &folder,
    const std::string &capstan) {
  const fs::path own = folder / name.vendor / name.plugin;
  if (PathExists(own.string())) {
    return absl::AlreadyExistsError(absl::StrCat(
        own.string(), " is there already: choose another name or folder"));
  }
  std::vector<std::string> written;
  for (const EmbeddedFile *file = kNewPluginFiles; file->path != nullptr;
       ++file) {
    const std::string target = TargetOf(file->path, category, name);
    // Files shared by the folder's plugins may already exist.
    if (target.empty() || PathExists((folder / target).string())) continue;
    absl::Status status;
    if (fs::is_symlink(fs::symlink_status(folder / target))) {
      status = absl::FailedPreconditionError(
          absl::StrCat((folder / target).string(),
                       " is a link to a file that isn't there: remove it"));
    } else {
      written.push_back(target);
      status = WriteNew(folder / target,
                        TextOf(file->text, category, name, capstan));
    }
    if (status.ok()) continue;
    // Nothing half-done, or the next try would find it there already.
    std::error_code error;
    for (const std::string &path : written) fs::remove(folder / path, error);
    fs::remove_all(own, error);
    fs::remove(own.parent_path(), error);  // unless it has other plugins
    return status;
  }
  return written;
}

// LibTorch with its headers, as the trainer's own has them; else a word for it.
std::string TorchFolder() {
  const fs::path torch =
      fs::path(
          LibraryFolder(reinterpret_cast<const void *>(&c10::SetAllocator)))
          .parent_path();
  return PathExists((torch / "include/ATen/ATen.h").string()) ? torch.string()
                                                              : "TORCH";
}

// Prints the commands that build, test and use it.
void PrintCommands(const Category &category, const Name &name,
                   const fs::path &folder, const std::string &capstan,
                   const std::vector<std::string> &written) {
  const std::string own = absl::StrCat(name.vendor, "/", name.plugin);
  const std::string call =
      name.command.empty()
          ? absl::StrCat("--config=", capstan.empty() ? "CAPSTAN" : capstan,
                         "/configs/", category.run, " --config=", own, "/",
                         name.plugin, ".pbtxt")
          : absl::StrCat(name.command, " --text=", own, "/testdata/lines.txt");
  std::cout << "Written in " << folder.string() << ":\n  "
            << absl::StrJoin(written, "\n  ") << "\nIn that folder:\n"
            << "  bazel build //" << own << ":all\n"
            << "  bazel test //" << own << ":all\n  " << ExecutableFolder()
            << "/trainer --plugin_path=bazel-bin/" << own << " " << call
            << "\nWithout Bazel: make test CAPSTAN_TORCH_DIR=" << TorchFolder()
            << "\n(or CMake), and --plugin_path=build/" << own
            << "\nThat needs packages of Debian or Ubuntu:\n  apt-get install "
            << kPackages << std::endl;
  if (capstan.empty()) {
    std::cout << "CAPSTAN is Capstan's workspace, which isn't found from here: "
                 "put its path for "
              << kBeside << " into WORKSPACE and Makefile" << std::endl;
  }
}

absl::StatusOr<int> NewPlugin(const NewPluginOptions &options) {
  CAPSTAN_ASSIGN_OR_RETURN(const Category category,
                           FindCategory(options.category));
  CAPSTAN_ASSIGN_OR_RETURN(const Name name, ParseName(options.name, category));
  if (options.folder.empty()) {
    return absl::InvalidArgumentError("FOLDER is empty: name one to write in");
  }
  const fs::path folder = FromCaller(options.folder);
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder.string(), " is not a folder"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::string capstan,
                           CapstanFolder(options.capstan, folder));
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::vector<std::string> written,
      WritePlugin(category, name, folder, capstan.empty() ? kBeside : capstan));
  PrintCommands(category, name, folder, capstan, written);
  return 0;
}

void AddFlags(Flags &flags, NewPluginOptions *options) {
  flags
      .Add("--category", &options->category,
           "strategy, precision, dataset_reader, collector, model, objective, "
           "optimizer, part or command")
      .Required();
  flags
      .Add("--name", &options->name,
           "VENDOR.NAME, the package of its config: acme.lion; of a command, "
           "what follows trainer")
      .Required();
  flags
      .Add("FOLDER", &options->folder,
           "Where VENDOR/NAME is made; may hold other plugins")
      .Required();
  flags
      .Add("--capstan", &options->capstan,
           "Capstan's workspace, which the plugin's builds refer to")
      .Type("FOLDER");
}

const RegisterFunction<NewPluginOptions> new_plugin("new-plugin", AddFlags,
                                                    NewPlugin);

}  // namespace
}  // namespace capstan
