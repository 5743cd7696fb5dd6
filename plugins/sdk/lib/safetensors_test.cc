// SPDX-License-Identifier: Apache-2.0
#include "plugins/sdk/lib/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/small_disk_for_test.h"

namespace capstan {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/safetensors_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

void WriteFile(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string FileBytes(const std::string& header, const std::string& data) {
  std::string length(8, '\0');
  for (int i = 0; i < 8; ++i) length[i] = header.size() >> (8 * i);
  return length + header + data;
}

// "" if it opens, else the error.
std::string OpenError(const std::string& path) {
  const auto reader = SafetensorsReader::Open(path);
  return reader.ok() ? "" : std::string(reader.status().message());
}

std::string OpenErrorOfBytes(const std::string& bytes) {
  const std::string path = NewFolder() + "/hostile.safetensors";
  WriteFile(path, bytes);
  const std::string error = OpenError(path);
  EXPECT_TRUE(error.empty() || absl::StrContains(error, path)) << error;
  return error;
}

std::string OpenErrorOf(const std::string& header, const std::string& data) {
  return OpenErrorOfBytes(FileBytes(header, data));
}

std::string F32(int n, int begin, int end) {
  return absl::StrCat("{\"dtype\":\"F32\",\"shape\":[", n,
                      "],\"data_offsets\":[", begin, ",", end, "]}");
}

// A file with the one F32 tensor `name`.
void WriteOne(const std::string& path, const std::string& name, float value) {
  auto writer = SafetensorsWriter::Create(path);
  ASSERT_TRUE(writer.ok()) << writer.status();
  (*writer)->Declare(name, c10::ScalarType::Float, {1});
  ASSERT_TRUE((*writer)->Append(&value, 4).ok());
  ASSERT_TRUE((*writer)->Close().ok());
}

TEST(SafetensorsTest, WhatIsWrittenIsRead) {
  const std::string path = NewFolder() + "/a.safetensors";
  const float floats[] = {1.0f, -2.5f, 3e-40f,
                          std::numeric_limits<float>::infinity()};
  const double doubles[] = {0.1, 2.0};
  // 1, -2, the least subnormal.
  const uint16_t halves[] = {0x3c00, 0xc000, 0x0001};
  const uint16_t brains[] = {0x3f80, 0xc000, 0x4049};
  const int64_t longs[] = {7};
  {
    auto writer = SafetensorsWriter::Create(path);
    ASSERT_TRUE(writer.ok()) << writer.status();
    (*writer)->Declare("f", c10::ScalarType::Float, {2, 2});
    (*writer)->Declare("empty", c10::ScalarType::Float, {0, 5});
    (*writer)->Declare("h", c10::ScalarType::Half, {3});
    // At a multiple of 2 only: not aligned.
    (*writer)->Declare("d", c10::ScalarType::Double, {2});
    (*writer)->Declare("b \"q\"", c10::ScalarType::BFloat16, {3});
    (*writer)->Declare("l", c10::ScalarType::Long, {});
    (*writer)->SetMetadata("who", "test");
    ASSERT_TRUE((*writer)->Append(floats, 6).ok());  // in pieces
    ASSERT_TRUE(
        (*writer)->Append(reinterpret_cast<const char*>(floats) + 6, 10).ok());
    ASSERT_TRUE((*writer)->Append(nullptr, 0).ok());
    ASSERT_TRUE((*writer)->Append(halves, 6).ok());
    ASSERT_TRUE((*writer)->Append(doubles, 16).ok());
    ASSERT_TRUE((*writer)->Append(brains, 6).ok());
    ASSERT_TRUE((*writer)->Append(longs, 8).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  EXPECT_EQ(ReadFile(path)[0] % 8, 0) << "the data isn't aligned to 8 bytes";
  const auto opened = SafetensorsReader::Open(path);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const SafetensorsReader& reader = **opened;
  EXPECT_EQ(reader.metadata().at("format"), "pt");
  EXPECT_EQ(reader.metadata().at("who"), "test");
  EXPECT_EQ(reader.tensors().size(), 6);
  EXPECT_THAT(reader.tensors().at("f").shape, ElementsAre(2, 2));
  EXPECT_THAT(reader.tensors().at("empty").shape, ElementsAre(0, 5));
  EXPECT_EQ(reader.tensors().at("l").numel, 1);
  EXPECT_EQ(reader.tensors().at("f").file, path);

  float out[4];
  ASSERT_TRUE(reader.ReadFloats("f", 0, 4, out).ok());
  EXPECT_EQ(std::memcmp(out, floats, sizeof(floats)), 0);
  ASSERT_TRUE(reader.ReadFloats("h", 0, 3, out).ok());
  EXPECT_EQ(out[0], 1.0f);
  EXPECT_EQ(out[1], -2.0f);
  EXPECT_EQ(out[2], std::ldexp(1.0f, -24));
  ASSERT_TRUE(reader.ReadFloats("b \"q\"", 1, 2, out).ok());
  EXPECT_EQ(out[0], -2.0f);
  EXPECT_EQ(out[1], 3.140625f);
  ASSERT_TRUE(reader.ReadFloats("d", 0, 2, out).ok());
  EXPECT_EQ(out[0], 0.1f);
  EXPECT_TRUE(reader.ReadFloats("empty", 0, 0, nullptr).ok());

  EXPECT_TRUE(absl::IsNotFound(reader.ReadFloats("none", 0, 1, out)));
  EXPECT_TRUE(absl::IsOutOfRange(reader.ReadFloats("f", 3, 2, out)));
  EXPECT_TRUE(absl::IsOutOfRange(reader.ReadFloats("f", -1, 1, out)));
  EXPECT_TRUE(absl::IsOutOfRange(
      reader.ReadFloats("f", 2, std::numeric_limits<int64_t>::max(), out)));
  EXPECT_TRUE(absl::IsInvalidArgument(reader.ReadFloats("l", 0, 1, out)));
}

TEST(SafetensorsTest, DtypesHaveNames) {
  for (const char* name :
       {"BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32",
        "F64", "I64", "U64", "F8_E4M3", "F8_E5M2"}) {
    const auto dtype = SafetensorsDtype(name);
    ASSERT_TRUE(dtype.ok()) << name;
    EXPECT_EQ(*SafetensorsDtypeName(*dtype), name);
  }
  EXPECT_FALSE(SafetensorsDtype("F128").ok());
  EXPECT_FALSE(SafetensorsDtypeName(c10::ScalarType::ComplexFloat).ok());
}

TEST(SafetensorsTest, HostileHeaders) {
  const std::string data(8, 'x');
  const std::string good = "{\"a\":" + F32(2, 0, 8) + "}";
  EXPECT_EQ(OpenErrorOf(good + "   ", data), "");
  EXPECT_EQ(OpenErrorOf(" " + good + "\n", data), "");
  EXPECT_EQ(OpenErrorOf("{\"__metadata__\":null," + good.substr(1), data), "");
  EXPECT_THAT(OpenErrorOf(good + std::string(3, '\0'), data), HasSubstr("NUL"));
  EXPECT_THAT(OpenErrorOf("\xef\xbb\xbf" + good, data),
              HasSubstr("byte-order mark"));
  EXPECT_EQ(OpenErrorOf("{}", ""), "");
  EXPECT_EQ(OpenErrorOf("{\"a\":{\"n\":18446744073709551616,\"m\":[1e400]," +
                            F32(2, 0, 8).substr(1) + "}",
                        data),
            "");
  EXPECT_THAT(OpenErrorOfBytes(""), HasSubstr("too short"));
  EXPECT_THAT(OpenErrorOfBytes("1234567"), HasSubstr("too short"));
  EXPECT_THAT(OpenErrorOfBytes(std::string(8, '\xff') + good + data),
              HasSubstr("header"));
  EXPECT_THAT(OpenErrorOfBytes(std::string("\x7f\0\0\0\0\0\0\0", 8) + good),
              HasSubstr("header"));
  EXPECT_THAT(OpenErrorOf("", data), HasSubstr("isn't JSON"));
  EXPECT_THAT(OpenErrorOf("[]", ""), HasSubstr("isn't a JSON object"));
  EXPECT_THAT(OpenErrorOf(good + "x", data), HasSubstr("isn't JSON"));
  EXPECT_THAT(OpenErrorOf("{\"\xff\":1}", data), HasSubstr("isn't JSON"));
  EXPECT_THAT(OpenErrorOf(std::string(1 << 20, '['), data),
              HasSubstr("nested"));
  EXPECT_THAT(
      OpenErrorOf("{\"a\":" + F32(1, 0, 4) + ",\"a\":" + F32(1, 4, 8) + "}",
                  data),
      HasSubstr("'a' twice"));
  EXPECT_THAT(
      OpenErrorOf("{\"__metadata__\":{\"k\":1},\"a\":" + F32(2, 0, 8) + "}",
                  data),
      HasSubstr("__metadata__"));
}

TEST(SafetensorsTest, HostileTensors) {
  const std::string data(8, 'x');
  const auto error = [&](const std::string& entries) {
    return OpenErrorOf("{" + entries + "}", data);
  };
  EXPECT_THAT(error("\"a\":" + F32(2, 8, 16)), HasSubstr("'a'"));
  EXPECT_THAT(error("\"a\":" + F32(2, 8, 16)), HasSubstr("outside"));
  EXPECT_THAT(error("\"a\":" + F32(2, 8, 0)), HasSubstr("outside"));
  EXPECT_THAT(error("\"a\":" + F32(1, 0, 8)), HasSubstr("wants 4 bytes"));
  EXPECT_THAT(error("\"a\":" + F32(2, -8, 0)), HasSubstr("natural number"));
  EXPECT_THAT(error("\"a\":" + F32(-2, 0, 8)), HasSubstr("natural number"));
  EXPECT_THAT(error("\"a\":" + F32(1, 0, 4)), HasSubstr("belong to no tensor"));
  EXPECT_THAT(error("\"a\":" + F32(1, 4, 8)), HasSubstr("hole"));
  EXPECT_THAT(error("\"a\":" + F32(2, 0, 8) + ",\"b\":" + F32(1, 4, 8)),
              HasSubstr("overlaps"));
  EXPECT_THAT(error("\"a\":" + F32(1, 4, 8) + ",\"b\":" + F32(1, 4, 8)),
              HasSubstr("hole"));
  // Tensors without bytes lie between others, as the format's own reader wants.
  EXPECT_EQ(error("\"a\":" + F32(2, 0, 8) + ",\"z\":" + F32(0, 8, 8)), "");
  EXPECT_EQ(error("\"z\":" + F32(0, 0, 0) + ",\"a\":" + F32(2, 0, 8)), "");
  EXPECT_EQ(error("\"a\":" + F32(1, 0, 4) + ",\"z\":" + F32(0, 4, 4) +
                  ",\"b\":" + F32(1, 4, 8)),
            "");
  EXPECT_THAT(error("\"a\":" + F32(2, 0, 8) + ",\"z\":" + F32(0, 4, 4)),
              HasSubstr("'z': overlaps"));
  EXPECT_THAT(
      error("\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],"
            "\"data_offsets\":[0,8]}"),
      HasSubstr("overflows"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],"
                    "\"data_offsets\":[0,0]}"),
              HasSubstr("overflows"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":[36893488147419103232],"
                    "\"data_offsets\":[0,8]}"),
              HasSubstr("natural number"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                    "\"data_offsets\":[0,9223372036854775808]}"),
              HasSubstr("data_offsets holds 9223372036854775808, which isn't a "
                        "natural number below 2^63"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":[2]}"),
              HasSubstr("data_offsets"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                    "\"data_offsets\":[0,8,8]}"),
              HasSubstr("two numbers"));
  EXPECT_THAT(error("\"a\":{\"dtype\":\"F32\",\"shape\":2,"
                    "\"data_offsets\":[0,8]}"),
              HasSubstr("shape"));
  EXPECT_THAT(error("\"a\":3"), HasSubstr("'a'"));
}

// Files have tensors that a model doesn't read, of dtypes that nothing reads.
TEST(SafetensorsTest, AnUnknownDtypeIsAnErrorOnlyOfTheTensorThatIsRead) {
  const std::string path = NewFolder() + "/dtypes.safetensors";
  WriteFile(path, FileBytes("{\"a\":" + F32(1, 0, 4) +
                                ",\"b\":{\"dtype\":\"F4\",\"shape\":[4],"
                                "\"data_offsets\":[4,6]}}",
                            std::string(6, '\0')));
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  float value = 1.0f;
  EXPECT_TRUE((*reader)->ReadFloats("a", 0, 1, &value).ok());
  EXPECT_EQ(value, 0.0f);
  EXPECT_THAT(std::string((*reader)->ReadFloats("b", 0, 1, &value).message()),
              HasSubstr("tensor 'b' is F4; want F32, F16, BF16 or F64"));
}

TEST(SafetensorsTest, TruncationAnywhereIsAnError) {
  const std::string whole =
      FileBytes("{\"a\":" + F32(2, 0, 8) + "}", "12345678");
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_NE(OpenErrorOfBytes(whole.substr(0, size)), "") << size;
  }
  EXPECT_EQ(OpenErrorOfBytes(whole), "");
}

// It ended the process, without the file's name.
TEST(SafetensorsTest, AFileThatIsCutWhileItIsReadIsAnError) {
  const std::string path = NewFolder() + "/cut.safetensors";
  const int n = 100000;
  WriteFile(path, FileBytes(absl::StrCat("{\"a\":", F32(n, 0, 4 * n), "}"),
                            std::string(4 * n, 'x')));
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  std::vector<float> values(n);
  ASSERT_TRUE((*reader)->ReadFloats("a", 0, n, values.data()).ok());
  ASSERT_EQ(truncate(path.c_str(), 10000), 0);
  const absl::Status status = (*reader)->ReadFloats("a", 0, n, values.data());
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
}

TEST(SafetensorsTest, Folders) {
  const std::string folder = NewFolder();
  EXPECT_THAT(OpenError(folder), HasSubstr("model.safetensors nor "));
  EXPECT_THAT(OpenError(folder), HasSubstr("model.safetensors.index.json"));
  EXPECT_THAT(OpenError(folder + "/none"), HasSubstr(folder + "/none"));

  WriteOne(folder + "/x-1.safetensors", "a", 1.0f);
  WriteOne(folder + "/x-2.safetensors", "b", 2.0f);
  const std::string index = folder + "/model.safetensors.index.json";
  WriteFile(index,
            "{\"metadata\":{\"total_size\":8},\"weight_map\":"
            "{\"a\":\"x-1.safetensors\",\"b\":\"x-2.safetensors\"}}");
  const auto reader = SafetensorsReader::Open(folder);
  ASSERT_TRUE(reader.ok()) << reader.status();
  float value = 0;
  ASSERT_TRUE((*reader)->ReadFloats("b", 0, 1, &value).ok());
  EXPECT_EQ(value, 2.0f);
  EXPECT_EQ((*reader)->tensors().size(), 2);

  const auto with_map = [&](const std::string& map) {
    WriteFile(index, "{\"weight_map\":{" + map + "}}");
    return OpenError(folder);
  };
  EXPECT_THAT(with_map("\"c\":\"x-1.safetensors\""), HasSubstr("'c'"));
  EXPECT_THAT(with_map("\"c\":\"x-3.safetensors\""),
              HasSubstr("x-3.safetensors is missing"));
  for (const char* bad : {"../x-1.safetensors", "/etc/passwd", "..", "", "d/x",
                          "d\\\\x", "x\\u0000y"}) {
    EXPECT_THAT(with_map(absl::StrCat("\"c\":\"", bad, "\"")),
                HasSubstr("plain file name"));
  }
  EXPECT_THAT(with_map("\"a\":3"), HasSubstr("plain file name"));
  EXPECT_THAT(with_map("\"a\":\"x-1.safetensors\",\"a\":\"x-2.safetensors\""),
              HasSubstr("twice"));
  WriteFile(index, "{}");
  EXPECT_THAT(OpenError(folder), HasSubstr("weight_map"));

  WriteOne(folder + "/model.safetensors", "single", 3.0f);  // goes first
  EXPECT_EQ(OpenError(folder), "");
}

TEST(SafetensorsWriterTest, IsRemovedWithoutClose) {
  const std::string path = NewFolder() + "/a.safetensors";
  const float value = 1;
  {
    auto writer = SafetensorsWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    (*writer)->Declare("a", c10::ScalarType::Float, {2});
    EXPECT_TRUE((*writer)->Append(&value, 4).ok());
    EXPECT_EQ(access(path.c_str(), F_OK), 0);
    EXPECT_TRUE(absl::IsFailedPrecondition((*writer)->Close()));
  }
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(SafetensorsWriterTest, MisuseIsAnError) {
  const std::string folder = NewFolder();
  const float values[2] = {1, 2};
  WriteOne(folder + "/old.safetensors", "a", 1.0f);
  EXPECT_FALSE(SafetensorsWriter::Create(folder + "/old.safetensors").ok());
  EXPECT_EQ(OpenError(folder + "/old.safetensors"), "");

  auto twice = SafetensorsWriter::Create(folder + "/twice");
  (*twice)->Declare("a", c10::ScalarType::Float, {1});
  (*twice)->Declare("a", c10::ScalarType::Float, {1});
  EXPECT_THAT(std::string((*twice)->Close().message()), HasSubstr("'a'"));

  auto much = SafetensorsWriter::Create(folder + "/much");
  (*much)->Declare("a", c10::ScalarType::Float, {1});
  EXPECT_TRUE(absl::IsFailedPrecondition((*much)->Append(values, 8)));
  EXPECT_FALSE((*much)->Close().ok());

  auto late = SafetensorsWriter::Create(folder + "/late");
  EXPECT_TRUE((*late)->Append(values, 0).ok());
  (*late)->Declare("a", c10::ScalarType::Float, {1});
  EXPECT_TRUE(absl::IsFailedPrecondition((*late)->Close()));

  auto name = SafetensorsWriter::Create(folder + "/name");
  (*name)->Declare("\xff", c10::ScalarType::Float, {0});
  EXPECT_TRUE(absl::IsInvalidArgument((*name)->Close()));
}

// Writes 1 MB into `folder`; what Append and Close say.
std::string WriteMegabyte(const std::string& folder) {
  auto writer = SafetensorsWriter::Create(folder + "/a.safetensors");
  if (!writer.ok()) return std::string(writer.status().message());
  const std::vector<float> values(1 << 18);
  (*writer)->Declare("a", c10::ScalarType::Float, {1 << 18});
  absl::Status status = (*writer)->Append(values.data(), 4 << 18);
  status.Update((*writer)->Close());
  return std::string(status.message());
}

TEST(SafetensorsWriterTest, AFailedWriteRemovesTheFile) {
  const std::string folder = NewFolder();
  struct rlimit old;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit low = old;
  low.rlim_cur = 100000;
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const std::string error = WriteMegabyte(folder);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &old), 0);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(error,
              HasSubstr("a.safetensors can't be written: File too large"));
  EXPECT_NE(access((folder + "/a.safetensors").c_str(), F_OK), 0);
}

TEST(SafetensorsWriterTest, AFullDiskIsNamed) {
  const std::string folder = NewFolder();
  ExpectOnSmallDisk(folder, "64k", [&] {
    const std::string error = WriteMegabyte(folder);
    return absl::EndsWith(error,
                          folder +
                              "/a.safetensors can't be written: No space left "
                              "on device") &&
           access((folder + "/a.safetensors").c_str(), F_OK) != 0;
  });
}

// Bytes of the mapping of `path` that this process has in memory, and its
// flags, as /proc/self/smaps has them.
struct Mapping {
  int64_t resident = 0;
  std::string flags;
};

Mapping MappingOf(const std::string& file) {
  const std::string path = std::filesystem::canonical(file).string();
  Mapping mapping;
  std::ifstream smaps("/proc/self/smaps");
  bool of_path = false;
  for (std::string line; std::getline(smaps, line);) {
    if (absl::EndsWith(line, path)) {
      of_path = true;
    } else if (of_path && absl::StartsWith(line, "Rss:")) {
      mapping.resident += 1024 * std::stoll(line.substr(4));
    } else if (of_path && absl::StartsWith(line, "VmFlags:")) {
      mapping.flags = line + " ";
      of_path = false;
    }
  }
  return mapping;
}

TEST(SafetensorsTest, WhatWasReadIsntHeldTwice) {
  const std::string path = NewFolder() + "/large.safetensors";
  constexpr int64_t kNumel = 4 << 20;
  std::vector<float> values(kNumel);
  for (int64_t i = 0; i < kNumel; ++i) values[i] = static_cast<float>(i);
  {
    auto writer = SafetensorsWriter::Create(path);
    ASSERT_TRUE(writer.ok());
    (*writer)->Declare("a", c10::ScalarType::Float, {kNumel});
    ASSERT_TRUE((*writer)->Append(values.data(), 4 * kNumel).ok());
    ASSERT_TRUE((*writer)->Close().ok());
  }
  const auto reader = SafetensorsReader::Open(path);
  ASSERT_TRUE(reader.ok());
  for (int time = 0; time < 2; ++time) {
    std::vector<float> read(kNumel);
    ASSERT_TRUE((*reader)->ReadFloats("a", 0, kNumel, read.data()).ok());
    EXPECT_EQ(read, values);
    EXPECT_LT(MappingOf(path).resident, 1 << 20);
  }
  EXPECT_NE(MappingOf(path).flags.find(" sr "), std::string::npos);
  (*reader)->ExpectRepeatedReads();
  EXPECT_EQ(MappingOf(path).flags.find(" sr "), std::string::npos);
}

}  // namespace
}  // namespace capstan
