// SPDX-License-Identifier: Apache-2.0
#include "trainer/plugin_host/plugin_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "plugins/sdk/precision.h"
#include "plugins/sdk/strategy.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string PluginFolder() {
  return absl::StrCat(std::getenv("TEST_SRCDIR"), "/capstan/trainer/plugins");
}

std::string ApiLine(int minor) {
  return absl::StrCat("api=", kPluginApiMajor, ".", minor, "\n");
}

TEST(PluginHostTest, AllPluginsLoadTogether) {
  PluginHost host({PluginFolder()});
  const std::vector<std::string> packages = host.Available();
  EXPECT_GE(packages.size(), 10);
  for (const std::string& package : packages) {
    const auto plugin = host.Load(absl::StrCat(package, ".Config"));
    ASSERT_TRUE(plugin.ok()) << plugin.status();
    EXPECT_NE(std::string((*plugin)->descriptor->doc), "");
  }
}

TEST(PluginHostTest, CreatesAPlugin) {
  PluginHost host({PluginFolder()});
  const auto precision = host.Create<Precision>("capstan.bf16.Config",
                                                PluginCategory::kPrecision, "");
  ASSERT_TRUE(precision.ok()) << precision.status();
  EXPECT_EQ((*precision)->policy().compute, c10::ScalarType::BFloat16);
}

TEST(PluginHostTest, WrongSlotNamesBothCategories) {
  PluginHost host({PluginFolder()});
  const auto strategy = host.Create<Strategy>("capstan.fp16.Config",
                                              PluginCategory::kStrategy, "");
  EXPECT_THAT(std::string(strategy.status().message()),
              HasSubstr("capstan.fp16 is a precision, a strategy is wanted"));
  const auto precision = host.Create<Precision>("capstan.adamw.Config",
                                                PluginCategory::kPrecision, "");
  EXPECT_THAT(
      std::string(precision.status().message()),
      HasSubstr("capstan.adamw is an optimizer, a precision is wanted"));
}

// The error for a copy of a real plugin with `from` replaced by `to` of the
// same length. It mustn't be loaded, as the original may be.
std::string ErrorOfChanged(const std::string& from, const std::string& to) {
  EXPECT_EQ(from.size(), to.size());
  const std::string folder = ::testing::TempDir() + "/changed";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ifstream in(PluginFolder() + "/libcapstan_fp16.so", std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(in)), {});
  size_t replaced = 0;
  for (size_t at = bytes.find(from); at != std::string::npos;
       at = bytes.find(from, at + 1)) {
    bytes.replace(at, to.size(), to);
    ++replaced;
  }
  EXPECT_GT(replaced, 0);
  std::ofstream(folder + "/libcapstan_fp16.so", std::ios::binary) << bytes;
  PluginHost host({folder});
  return std::string(host.Load("capstan.fp16.Config").status().message());
}

TEST(PluginHostTest, RefusesAPluginOfAnotherBuildBeforeLoadingIt) {
  EXPECT_THAT(ErrorOfChanged("libtorch=2.", "libtorch=1."),
              AllOf(HasSubstr("is refused"), HasSubstr("libtorch: trainer 2."),
                    HasSubstr("plugin 1."), HasSubstr("build it again")));
  EXPECT_THAT(ErrorOfChanged("containers=plain", "containers=debug"),
              HasSubstr("containers: trainer plain, plugin debug"));
  // Interfaces of a commit between releases.
  const std::string hash = std::string("sdk=") + CAPSTAN_SDK_HASH;
  EXPECT_THAT(ErrorOfChanged(hash, "sdk=" + std::string(hash.size() - 4, 'x')),
              AllOf(HasSubstr("sdk: trainer"), HasSubstr("other interfaces")));
}

TEST(PluginHostTest, RefusesANewerMinorVersionBeforeLoadingIt) {
  EXPECT_THAT(
      ErrorOfChanged(ApiLine(kPluginApiMinor), ApiLine(kPluginApiMinor + 1)),
      AllOf(HasSubstr("speaks plugin API"), HasSubstr("newer trainer")));
}

TEST(PluginHostTest, RefusesWhatIsNoPlugin) {
  const std::string folder = ::testing::TempDir() + "/no_plugin";
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/libacme_text.so") << "not a library";
  std::filesystem::copy_file("/proc/self/exe", folder + "/libacme_program.so",
                             std::filesystem::copy_options::overwrite_existing);
  PluginHost host({folder});
  EXPECT_THAT(std::string(host.Load("acme.text.Config").status().message()),
              HasSubstr("not a 64-bit shared library"));
  EXPECT_THAT(std::string(host.Load("acme.program.Config").status().message()),
              HasSubstr("no Capstan plugin"));
}

TEST(PluginHostTest, MissingPluginListsTheFoldersTried) {
  PluginHost host({PluginFolder()});
  EXPECT_THAT(std::string(host.Load("capstan.lama.Config").status().message()),
              AllOf(HasSubstr(PluginFolder()), HasSubstr("libcapstan_lama.so"),
                    HasSubstr("did you mean \"capstan.llama\"?")));
}

TEST(PluginHostTest, AShortNameIsNearTheWhole) {
  PluginHost host({PluginFolder()});
  EXPECT_EQ(host.NearestPackage("ddp"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("acme.ddp"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("capstan.ddq"), "capstan.ddp");
  EXPECT_EQ(host.NearestPackage("ful_moon"), "");
  EXPECT_THAT(std::string(host.Load("ddp.Config").status().message()),
              HasSubstr("did you mean \"capstan.ddp\"?"));
}

constexpr char kCore[] =
    "api=1.2\nlibtorch=2\nstdlib=new\nabsl=3\nprotobuf=4\nsanitizer=none\n"
    "containers=plain\ncompiler=12\nsdk=abc\n";

std::string Difference(const std::string& from, const std::string& to) {
  return std::string(
      CompareFingerprints(kCore, absl::StrReplaceAll(kCore, {{from, to}}))
          .message());
}

TEST(FingerprintTest, EachDifferenceThatMattersIsListedWithBothSides) {
  EXPECT_EQ(Difference("x", "x"), "");
  EXPECT_EQ(Difference("compiler=12", "compiler=14"), "");
  const std::string both = std::string(
      CompareFingerprints(kCore, "libtorch=1\nabsl=3\nsanitizer=none\n")
          .message());
  EXPECT_THAT(both, AllOf(HasSubstr("libtorch: trainer 2, plugin 1; "),
                          HasSubstr("protobuf: trainer 4, plugin (missing)")));
  EXPECT_THAT(Difference("stdlib=new", "stdlib=old"),
              HasSubstr("stdlib: trainer new, plugin old"));
  EXPECT_THAT(Difference("sanitizer=none", "sanitizer=address"),
              HasSubstr("plugin address"));
}

TEST(FingerprintTest, TheInterfacesHashMattersWithinAVersion) {
  EXPECT_THAT(Difference("sdk=abc", "sdk=def"),
              HasSubstr("sdk: trainer abc, plugin def, other interfaces that "
                        "are called 1.2, too"));
  EXPECT_TRUE(CompareFingerprints(
                  kCore, absl::StrReplaceAll(
                             kCore, {{"sdk=abc", "sdk=def"}, {"1.2", "1.1"}}))
                  .ok());
  // Versions before 1.2 had fewer lines.
  EXPECT_TRUE(
      CompareFingerprints(
          kCore, "libtorch=2\nabsl=3\nprotobuf=4\nsanitizer=none\nsdk=x\n")
          .ok());
}

TEST(FingerprintTest, OlderMinorVersionsWork) {
  EXPECT_TRUE(CheckApi("1.0", "1.2").ok());
  EXPECT_TRUE(CheckApi("1.2", "1.2").ok());
  EXPECT_THAT(std::string(CheckApi("1.3", "1.2").message()),
              AllOf(HasSubstr("plugin API 1.3, this trainer 1.2"),
                    HasSubstr("newer trainer")));
  EXPECT_THAT(std::string(CheckApi("0.9", "1.2").message()),
              HasSubstr("build it again"));
  EXPECT_FALSE(CheckApi("2.0", "1.2").ok());
  EXPECT_FALSE(CheckApi("", "1.2").ok());
  EXPECT_FALSE(CheckApi("1.10", "1.9").ok());
}

TEST(DescriptorTest, AnOlderShorterOneIsRead) {
  PluginDescriptor theirs = {
      kPluginMagic,
      sizeof(PluginDescriptor),
      kPluginApiMajor,
      0,
      PluginCategory::kPrecision,
      "acme.x.Config",
      "says what",
      "",
      [](absl::string_view, void**) { return absl::OkStatus(); }};
  // All that version 1.0 had.
  theirs.struct_size =
      offsetof(PluginDescriptor, create) + sizeof(PluginDescriptor::create);
  const auto copy = CopyDescriptor(theirs);
  ASSERT_TRUE(copy.ok()) << copy.status();
  EXPECT_EQ(copy->create, theirs.create);
  EXPECT_EQ(copy->api_minor, 0);
  // A newer build of this version may have more.
  theirs.struct_size = sizeof(PluginDescriptor) + 8;
  EXPECT_TRUE(CopyDescriptor(theirs).ok());

  theirs.struct_size = offsetof(PluginDescriptor, create);
  EXPECT_THAT(std::string(CopyDescriptor(theirs).status().message()),
              HasSubstr("isn't whole"));
  theirs.struct_size = sizeof(PluginDescriptor);
  theirs.create = nullptr;
  EXPECT_FALSE(CopyDescriptor(theirs).ok());
  theirs.api_minor = kPluginApiMinor + 1;
  EXPECT_THAT(std::string(CopyDescriptor(theirs).status().message()),
              HasSubstr("newer trainer"));
  theirs.magic = 0;
  EXPECT_THAT(std::string(CopyDescriptor(theirs).status().message()),
              HasSubstr("CAPSTAN_PLUGIN"));
}

// What CAPSTAN_PLUGIN asserts, in words.
struct NoCreate : Precision {
  PrecisionPolicy policy() const override { return {}; }
};
struct RawCreate : NoCreate {
  static RawCreate* Create(const int&) { return nullptr; }
};
struct RightCreate : NoCreate {
  static absl::StatusOr<std::unique_ptr<RightCreate>> Create(const int&) {
    return nullptr;
  }
};
struct ForeignCreate {
  static absl::StatusOr<std::unique_ptr<ForeignCreate>> Create(const int&) {
    return nullptr;
  }
};

TEST(CreateTest, ItsSignatureIsRecognised) {
  EXPECT_TRUE((HasCreate<Precision, RightCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, NoCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, RawCreate, int>::value));
  EXPECT_FALSE((HasCreate<Precision, RightCreate, std::string>::value));
  EXPECT_FALSE((HasCreate<Precision, ForeignCreate, int>::value));
}

TEST(NearestNameTest, FindsTyposOnly) {
  EXPECT_EQ(NearestName("bucket_cap", {"bucket_cap_mib", "other"}),
            "bucket_cap_mib");
  EXPECT_EQ(NearestName("ddp", {"fp16", "llama"}), "");
}

}  // namespace
}  // namespace capstan
