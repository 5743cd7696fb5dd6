// SPDX-License-Identifier: Apache-2.0
//
// Members that archives have beside plain texts.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "datasets/stream/stream_testing.h"

namespace capstan::stream {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Blocks(std::string bytes) {
  bytes.resize((bytes.size() + 511) / 512 * 512, '\0');
  return bytes;
}

std::string Member(const std::string& name, const std::string& text,
                   char type = '0', std::string size = "") {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(100, 7, "0000644");
  if (size.empty()) size = absl::StrFormat("%011o", text.size());
  header.replace(124, size.size(), size);
  header[156] = type;
  header.replace(257, 5, "ustar");
  header.replace(148, 8, 8, ' ');
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 8,
                 absl::StrFormat("%06o", sum) + std::string(1, '\0') + " ");
  return header + Blocks(text);
}

std::string Pax(const std::string& record) {
  const size_t rest = record.size() + 2;
  size_t length = rest;
  while (rest + absl::StrCat(length).size() != length) {
    length = rest + absl::StrCat(length).size();
  }
  return Member("pax", absl::StrCat(length, " ", record, "\n"), 'x');
}

std::string End() { return std::string(1024, '\0'); }

Config OfArchive(const std::string& archive) {
  Config config = Of(NewFolder(), 4);
  WriteFile(config.path() + "/a.tar", archive);
  config.set_lanes(1);
  return config;
}

std::string Error(const Config& config) {
  const auto stream = Make(config);
  return stream.ok() ? "none" : std::string(stream.status().message());
}

std::vector<std::string> Texts(const Config& config) {
  const auto stream = MustMake(config);
  if (stream == nullptr) return {};
  std::vector<int64_t> samples(static_cast<size_t>(stream->size()));
  std::iota(samples.begin(), samples.end(), 0);
  return TextsIn(MustRead(*stream, samples));
}

TEST(TarTest, OnlyTheTextOfItsKey) {
  EXPECT_THAT(
      Texts(OfArchive(Member("1.txt", "abc") + Member("1.url.txt", "http") +
                      Member("2.meta.json", "{\"text\": \"no\"}") +
                      Member("2.txt", "abc") + End())),
      ElementsAre("abc", "abc"));
}

TEST(TarTest, MembersWithoutTheirTextAreBadRows) {
  for (const auto& [member, why] :
       {std::make_pair(Member("2.txt", "", '2'), "is a link"),
        std::make_pair(Member("2.txt", "", '1'), "is a link"),
        std::make_pair(Member("2.txt", "xxx", 'S'), "is a sparse file"),
        std::make_pair(Pax("GNU.sparse.major=1") + Member("2.txt", "xxx"),
                       "is a sparse file")}) {
    Config config = OfArchive(Member("1.txt", "abc") + member + End());
    EXPECT_THAT(Error(config),
                AllOf(HasSubstr("a.tar, member 2.txt is a"), HasSubstr(why),
                      HasSubstr("bad_rows: SKIP")));
    config.set_bad_rows(SKIP);
    EXPECT_THAT(Texts(config), ElementsAre("abc"));
  }
}

TEST(TarTest, ArchivesThatWereJoined) {
  const std::string one = Member("1.txt", "abc") + End();
  EXPECT_THAT(Error(OfArchive(one + one)),
              HasSubstr("goes on at byte 2048, behind the archive's end at "
                        "byte 1024"));
  EXPECT_THAT(Texts(OfArchive(one + std::string(10240, '\0'))),
              ElementsAre("abc"));
}

TEST(TarTest, SizesThatAreNone) {
  for (const std::string& bad :
       {Pax("size=3zz") + Member("1.txt", "abc"),
        Pax("size=-5") + Member("1.txt", "abc"),
        Pax("size=99999999999999999999") + Member("1.txt", "abc"),
        Member("pax", "70 path=torn\n", 'x') + Member("1.txt", "abc"),
        Member("1.txt", "abc", '0',
               std::string("\x80\x01\0\0\0\0\0\0\0\0\0\x03", 12)),
        Member("1.txt", "abc", '0',
               std::string("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfd",
                           12))}) {
    EXPECT_THAT(Error(OfArchive(bad + End())),
                HasSubstr("is damaged or cut off"));
  }
  EXPECT_THAT(
      Texts(OfArchive(Member("1.txt", "abc", '0',
                             std::string("\x80\0\0\0\0\0\0\0\0\0\0\x03", 12)) +
                      End())),
      ElementsAre("abc"));
}

TEST(TarTest, ANameWithALineEndKeepsAnErrorOnOneLine) {
  EXPECT_THAT(Error(OfArchive(Member("1\n2.txt", "\xff") + End())),
              HasSubstr("member 1\\n2.txt has a text that isn't UTF-8"));
}

}  // namespace
}  // namespace capstan::stream
