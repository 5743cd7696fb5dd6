// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/torch_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "desk/convert/torch_file_for_test.h"
#include "desk/convert/zip_entries.h"

namespace capstan {
namespace {

using namespace torch_test;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ReadTestFile(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream("desk/convert/testdata/" + name, std::ios::binary)
              .rdbuf();
  return text.str();
}

std::string OpenError(const std::string& bytes) {
  const auto file = TorchFile::Open(bytes);
  return file.ok() ? "" : std::string(file.status().message());
}

// The row-major elements of a tensor of the file's dict.
template <typename T>
std::vector<T> Elements(const TorchFile& file, const std::string& name) {
  const absl::StatusOr<TensorView> tensor = file.Tensor(file.root().At(name));
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  if (!tensor.ok()) return {};
  std::vector<T> elements(tensor->numel());
  EXPECT_EQ(tensor->bytes(), static_cast<int64_t>(elements.size() * sizeof(T)));
  tensor->CopyTo(reinterpret_cast<char*>(elements.data()));
  return elements;
}

// The error of the tensor "t" in a dict, "" if there is none.
std::string TensorError(const std::string& tensor,
                        const std::string& storage = Floats({1, 2, 3, 4})) {
  const std::string bytes = Saved(Dict({{"t", tensor}}), {{"0", storage}});
  const auto file = TorchFile::Open(bytes);
  if (!file.ok()) return std::string(file.status().message());
  return std::string(
      (*file)->Tensor((*file)->root().At("t")).status().message());
}

// Files of PyTorch 2.11, in both formats: torch.arange(12.).view(3, 4) as w,
// its transpose, and every other column of its last two rows, all of one
// storage.
TEST(TorchFileTest, ReadsWhatTorchSaveWrites) {
  for (const char* name : {"views.pt", "views_legacy.pt"}) {
    const std::string bytes = ReadTestFile(name);
    const auto file = TorchFile::Open(bytes);
    ASSERT_TRUE(file.ok()) << name << ": " << file.status();
    EXPECT_THAT(Elements<float>(**file, "transposed"),
                ElementsAre(0, 4, 8, 1, 5, 9, 2, 6, 10, 3, 7, 11));
    EXPECT_THAT(Elements<float>(**file, "strided"), ElementsAre(4, 6, 8, 10));
    EXPECT_THAT(Elements<int64_t>(**file, "scalar"), ElementsAre(7));
    EXPECT_THAT(Elements<uint16_t>(**file, "bfloat16"),
                ElementsAre(0x3f80, 0xc000));
    EXPECT_THAT(Elements<float>(**file, "empty"), ElementsAre());
    const auto w = (*file)->Tensor((*file)->root().At("w"));
    const auto tied = (*file)->Tensor((*file)->root().At("tied"));
    ASSERT_TRUE(w.ok() && tied.ok());
    EXPECT_TRUE(w->SameAs(*tied));
    EXPECT_NE(w->contiguous(), nullptr);
  }
}

TEST(TorchFileTest, RunsNothingAndNamesWhatItRefuses) {
  for (const auto& [module, name] :
       {std::pair<const char*, const char*>{"posix", "system"},
        {"os", "system"},
        {"builtins", "eval"},
        {"argparse", "Namespace"}}) {
    EXPECT_THAT(
        OpenError(Saved(Call(Global(module, name), {Text("true")}), {})),
        HasSubstr(absl::StrCat("Python's ", module, ".", name, ",")));
    // Protocol 4.
    EXPECT_THAT(
        OpenError(Saved(absl::StrCat(Text(module), Text(name), "\x93"), {})),
        HasSubstr(name));
  }
  // INST, which calls as well; and one that a list of texts would call.
  EXPECT_THAT(OpenError(Saved("(" + Text("true") + "ios\nsystem\n", {})),
              HasSubstr("opcode 0x69"));
  EXPECT_THAT(OpenError(Saved(Text("eval") + Tuple({Text("1")}) + "R", {})),
              HasSubstr("isn't a function"));
}

TEST(TorchFileTest, EndsOnHostilePickles) {
  // A list that has itself, twice, and a dict that is its own value.
  EXPECT_EQ(OpenError(Saved("]q\1(h\1h\1e", {})), "");
  EXPECT_EQ(OpenError(Saved("}q\1(" + Text("a") + "h\1u", {})), "");
  // A parameter of a parameter of a ..
  std::string nested = "N";
  for (int i = 0; i < 1000; ++i) {
    nested = Call(Global("torch._utils", "_rebuild_parameter"), {nested});
  }
  EXPECT_EQ(OpenError(Saved(nested, {})), "");
  // A tuple of 2^16 items that 2^10 calls share.
  std::string calls = "(" + std::string(1 << 16, 'N') + "tq\1";
  for (int i = 0; i < 1 << 10; ++i) {
    calls += Global("torch", "Size") + "h\1R0";
  }
  EXPECT_THAT(OpenError(Saved(calls, {})), HasSubstr("too many values"));
  // Deep nesting.
  EXPECT_EQ(OpenError(Saved("N" + std::string(1 << 20, '\x85'), {})), "");
  for (const std::string& value : {
           "\x8d" + Le(~uint64_t{0} >> 1, 8),  // a text of 2^63 bytes
           "\x8b" + Le(~uint64_t{0}, 4),       // a number of 2^32 bytes
           std::string("h\7"),                 // nothing was stored there
           std::string("t"),
           std::string("R"),
           std::string("(NsN"),
           std::string("(0"),
           std::string("}(NuN"),
           std::string("b"),
           std::string("c\n"),
       }) {
    EXPECT_THAT(OpenError(Saved(value, {})), HasSubstr("pickle is damaged"))
        << value.size() << " bytes";
  }
}

TEST(TorchFileTest, TensorsStayWithinTheirStorage) {
  EXPECT_EQ(TensorError(Tensor("0", {2, 2}, {2, 1})), "");
  EXPECT_THAT(TensorError(Tensor("0", {2, 2}, {2, 1}, 1)),
              HasSubstr("reaches element 4 of a storage that has 4"));
  EXPECT_THAT(TensorError(Tensor("0", {2}, {4})), HasSubstr("element 4"));
  EXPECT_THAT(TensorError(Tensor("0", {2}, {1}, -1)), HasSubstr("impossible"));
  EXPECT_THAT(TensorError(Tensor("0", {2}, {-1}, 1)), HasSubstr("impossible"));
  EXPECT_THAT(TensorError(Tensor("0", {-2}, {1})), HasSubstr("impossible"));
  EXPECT_THAT(TensorError(Tensor("0", {2, 2}, {1})), HasSubstr("impossible"));
  const int64_t huge = int64_t{1} << 62;
  EXPECT_THAT(TensorError(Tensor("0", {huge, 4}, {0, 0})),
              HasSubstr("impossible"));
  EXPECT_THAT(TensorError(Tensor("0", {3, 3}, {huge, huge})),
              HasSubstr("impossible"));
  EXPECT_THAT(TensorError(Tensor("0", {1 << 30}, {0})),
              HasSubstr("repeats its elements"));
  EXPECT_THAT(TensorError(Tensor("1", {1}, {1})), HasSubstr("no storage '1'"));
  EXPECT_THAT(TensorError(Tensor("0", {1}, {1}, 0, "ComplexFloatStorage")),
              HasSubstr("is complex64"));
}

TEST(TorchFileTest, NamesOtherFormats) {
  EXPECT_THAT(OpenError("hello"), HasSubstr("isn't a file of torch.save's"));
  EXPECT_THAT(OpenError(Zip({{"a/b", "c"}})), HasSubstr("without a data.pkl"));
  EXPECT_THAT(
      OpenError(Zip({{"a/data.pkl", Pickled("N")}, {"a/byteorder", "big"}})),
      HasSubstr("big-endian"));
  EXPECT_THAT(
      OpenError(Zip({{"a/data.pkl", Pickled("N")}, {"a/constants.pkl", "x"}})),
      HasSubstr("TorchScript"));
}

TEST(ZipEntriesTest, RefusesEntriesThatShareBytes) {
  std::string bytes = Zip({{"aa", "first"}, {"bb", "other"}});
  ASSERT_TRUE(ZipEntries(bytes).ok());
  EXPECT_EQ(ZipEntries(bytes)->at("bb").bytes, "other");
  // The second's place becomes the first's.
  const size_t directory = bytes.find("PK\1\2");
  const size_t second = bytes.find("PK\1\2", directory + 4);
  std::string shared = bytes;
  shared.replace(second + 42, 4, Le(0, 4));
  EXPECT_THAT(std::string(ZipEntries(shared).status().message()),
              HasSubstr("overlaps"));
  std::string outside = bytes;
  outside.replace(second + 42, 4, Le(1 << 20, 4));
  EXPECT_FALSE(ZipEntries(outside).ok());
}

TEST(TorchFileTest, ComparesChecksums) {
  const std::string whole = ReadTestFile("views.pt");
  // Of a storage, and of the pickle.
  for (const std::string& part : {Floats({5, 6}), std::string("transposed")}) {
    std::string bytes = whole;
    ASSERT_NE(bytes.find(part), std::string::npos);
    bytes[bytes.find(part)] ^= 1;
    std::string error = OpenError(bytes);
    if (error.empty()) {
      const auto file = TorchFile::Open(bytes);
      error = std::string(
          (*file)->Tensor((*file)->root().At("w")).status().message());
    }
    EXPECT_THAT(error, HasSubstr("checksum"));
  }
}

// So that damage isn't found by them.
std::string WithoutChecksums(std::string zip) {
  for (size_t at = zip.find("PK\1\2"); at != std::string::npos;
       at = zip.find("PK\1\2", at + 1)) {
    zip.replace(at + 16, 4, Le(0, 4));
  }
  return zip;
}

// No byte that is missing or another makes it crash or read outside.
TEST(TorchFileTest, SurvivesEachDamage) {
  for (const char* name : {"views.pt", "views_legacy.pt"}) {
    const std::string whole = WithoutChecksums(ReadTestFile(name));
    ASSERT_FALSE(whole.empty());
    const auto look = [](const std::string& bytes) {
      const auto file = TorchFile::Open(bytes);
      if (!file.ok() || !(*file)->root().is(PickleValue::Kind::kDict)) return;
      for (const PickleValue* const value : (*file)->root().items) {
        const auto tensor = (*file)->Tensor(*value);
        if (!tensor.ok()) continue;
        std::string copy(tensor->bytes(), '\0');
        tensor->CopyTo(&copy[0]);
      }
    };
    for (size_t i = 0; i < whole.size(); ++i) {
      look(whole.substr(0, i));
      std::string other = whole;
      other[i] = static_cast<char>(other[i] ^ 0xff);
      look(other);
    }
  }
}

}  // namespace
}  // namespace capstan
