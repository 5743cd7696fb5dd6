// SPDX-License-Identifier: Apache-2.0
#include "base/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string Bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A version 1.0 file with this header text and `data_bytes` bytes of elements.
std::string Version1(const std::string& text, size_t data_bytes) {
  std::string file("\x93NUMPY\x01\0", 8);
  file += static_cast<char>(text.size() & 0xff);
  file += static_cast<char>(text.size() >> 8);
  return file + text + std::string(data_bytes, '\0');
}

std::string Int64Header(const std::string& shape) {
  return "{'descr': '<i8', 'fortran_order': False, 'shape': " + shape + ", }\n";
}

std::string Error(const std::string& file) {
  const auto header = ParseNpyHeader(file);
  EXPECT_FALSE(header.ok());
  return std::string(header.status().message());
}

TEST(NpyTest, WritesWhatNumpyWrites) {
  // numpy.save of numpy.array([[1, -2, 3], [4, 5, 6]]), byte by byte.
  const std::vector<int64_t> values = {1, -2, 3, 4, 5, 6};
  ASSERT_TRUE(WriteNpy<int64_t>(Path("a.npy"), {2, 3}, values).ok());
  std::string expected("\x93NUMPY\x01\0\x76\0", 10);
  expected += "{'descr': '<i8', 'fortran_order': False, 'shape': (2, 3), }";
  expected.resize(127, ' ');
  expected += '\n';
  expected.append(reinterpret_cast<const char*>(values.data()), 48);
  EXPECT_EQ(Bytes(Path("a.npy")), expected);
  EXPECT_FALSE(std::filesystem::exists(Path(".a.npy.new")));
}

template <typename T>
void ExpectRoundTrip(const std::vector<int64_t>& shape,
                     const std::vector<T>& values) {
  const std::string path = Path("round.npy");
  ASSERT_TRUE(WriteNpy<T>(path, shape, values).ok());
  const auto array = NpyArray::Open(path);
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ((*array)->shape(), shape);
  EXPECT_EQ((*array)->type(), NpyTypeOf<T>());
  std::vector<T> read(values.size());
  (*array)->Read(0, static_cast<int64_t>(read.size()), read.data());
  EXPECT_EQ(read, values);
  if (values.size() < 2) return;
  T second;
  (*array)->Read(1, 1, &second);
  EXPECT_EQ(second, values[1]);
}

TEST(NpyTest, EachTypeAndShapeComesBack) {
  ExpectRoundTrip<int64_t>({3}, {-1, 1ll << 40, 7});
  ExpectRoundTrip<int32_t>({2, 1, 2}, {1, -2, 3, 1 << 30});
  ExpectRoundTrip<uint8_t>({2}, {0, 255});
  ExpectRoundTrip<float>({1, 2}, {0.5f, -3e30f});
  ExpectRoundTrip<double>({2, 2}, {0.1, -1e300, 0, 4});
  ExpectRoundTrip<double>({}, {2.5});
  ExpectRoundTrip<double>({0, 500}, {});
}

TEST(NpyTest, ReadsEachVersionAndSpelling) {
  auto header = ParseNpyHeader(Version1(Int64Header("(2, 3)"), 48));
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_THAT(header->shape, ElementsAre(2, 3));
  EXPECT_EQ(header->ShapeText(), "[2, 3]");
  EXPECT_EQ(header->type, NpyType::kInt64);

  const std::string text =
      "{\"shape\":(2,),\"fortran_order\":True,\"descr\":\"|b1\"}";
  for (char version : {'\x02', '\x03'}) {
    const std::string file = std::string("\x93NUMPY") + version + '\0' +
                             static_cast<char>(text.size()) +
                             std::string(3, '\0') + text + "\1\1";
    header = ParseNpyHeader(file);
    ASSERT_TRUE(header.ok()) << header.status();
    // A 1-D array is in both orders.
    EXPECT_THAT(header->shape, ElementsAre(2));
    EXPECT_EQ(header->type, NpyType::kBool);
  }
}

TEST(NpyTest, RefusesOtherFilesByName) {
  EXPECT_THAT(Error("[1, 2]"), HasSubstr("isn't a .npy file"));
  EXPECT_THAT(Error(std::string("\x93NUMPY\x04\0\0\0", 10)),
              HasSubstr("version 4.0"));
  const std::string good = Version1(Int64Header("(2, 3)"), 48);
  EXPECT_THAT(Error(good.substr(0, 9)), HasSubstr("ends within its header"));
  EXPECT_THAT(Error(good.substr(0, 40)), HasSubstr("ends within its header"));
  EXPECT_THAT(Error(good.substr(0, good.size() - 1)),
              HasSubstr("is truncated: [2, 3] elements of int64 are 48 bytes, "
                        "but there are 47"));
  EXPECT_THAT(Error(good + "x"), HasSubstr("is longer than it says"));
  EXPECT_THAT(Error(Version1("{'descr': '>i8', 'fortran_order': False, "
                             "'shape': (1,), }",
                             8)),
              HasSubstr("big-endian numbers ('>i8')"));
  EXPECT_THAT(Error(Version1("{'descr': '<i8', 'fortran_order': True, "
                             "'shape': (2, 3), }",
                             48)),
              HasSubstr("Fortran order"));
  EXPECT_THAT(Error(Version1("{'descr': [('a', '<i8')], 'fortran_order': "
                             "False, 'shape': (1,), }",
                             8)),
              HasSubstr("records"));
  for (const char* descr : {"|O", "<c8", "<U5", "", "<"}) {
    EXPECT_THAT(Error(Version1(std::string("{'descr': '") + descr +
                                   "', 'fortran_order': False, 'shape': (1,)}",
                               8)),
                HasSubstr("elements of the type"));
  }
}

TEST(NpyTest, RefusesHostileHeaders) {
  for (const char* shape : {"(4611686018427387904, 4)",
                            "(3037000500, "
                            "3037000500)"}) {
    EXPECT_THAT(Error(Version1(Int64Header(shape), 8)),
                HasSubstr("no file holds"));
  }
  for (const char* shape :
       {"(-1,)", "(1", "1", "(1.5,)", "(1,,)", "(99999999999999999999,)"}) {
    EXPECT_THAT(Error(Version1(Int64Header(shape), 8)),
                HasSubstr("its header doesn't say"));
  }
  for (const char* text :
       {"", "{", "{}", "{'descr': '<i8'}", "{'descr': '<i8",
        "{'descr': '<i8', 'fortran_order': 0, 'shape': ()}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': (), 'x': 1}",
        "{'descr': '<i8', 'fortran_order': False, 'shape': ()} x",
        // One string, on two lines.
        ("{'descr': '<i8', 'descr': '<i8', 'fortran_order': False, "
         "'shape': ()}")}) {
    EXPECT_THAT(Error(Version1(text, 8)), HasSubstr("its header doesn't say"));
  }
}

// The sizes before the 0 overflow an int64.
TEST(NpyTest, NothingOfAnySizeIsNothing) {
  const std::string file =
      Version1(Int64Header("(4611686018427387904, 4, 0)"), 0);
  const auto header = ParseNpyHeader(file);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->elements(), 0);
}

TEST(NpyTest, ErrorsNameTheFile) {
  EXPECT_THAT(std::string(NpyArray::Open(Path("none.npy")).status().message()),
              HasSubstr("none.npy can't be opened"));
  std::ofstream(Path("text.npy")) << "text";
  EXPECT_THAT(std::string(NpyArray::Open(Path("text.npy")).status().message()),
              HasSubstr("text.npy isn't a .npy file"));
  EXPECT_THAT(
      std::string(WriteNpy<double>("/none/x.npy", {1}, {1.0}).message()),
      HasSubstr("/none/"));
}

TEST(NpyTest, AFileAppearsOnlyWhenItIsWhole) {
  const std::string path = Path("part.npy");
  {
    auto writer = NpyWriter::Create(path, NpyType::kInt64, {2});
    ASSERT_TRUE(writer.ok()) << writer.status();
    ASSERT_TRUE((*writer)->Append<int64_t>({1}).ok());
    EXPECT_THAT(std::string((*writer)->Close().message()),
                HasSubstr("2 elements, but 1 were written"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(std::filesystem::exists(Path(".part.npy.new")));
}

}  // namespace
}  // namespace capstan
