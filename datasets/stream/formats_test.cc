// SPDX-License-Identifier: Apache-2.0
//
// Each format gives the texts that are in it, in their order, and each defect
// is an error that names shard and place, and says what to do.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "datasets/stream/stream_testing.h"
#include "text/tokens/token_file.h"

namespace capstan::stream {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr char kData[] = "datasets/stream/testdata/";

std::string RowOfTestdata(int i) {
  std::string text = absl::StrCat("row ", i, " ");
  for (int word = 0; word < i % 50; ++word) text += "word ";
  return text;
}

std::vector<std::string> RowsOfTestdata(int count) {
  std::vector<std::string> rows;
  for (int i = 0; i < count; ++i) rows.push_back(RowOfTestdata(i));
  return rows;
}

std::string Gzip(const std::string& bytes) {
  z_stream stream = {};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  std::string packed(deflateBound(&stream, bytes.size()), '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(&packed[0]);
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::string Zstd(const std::string& bytes) {
  std::string packed(ZSTD_compressBound(bytes.size()), '\0');
  packed.resize(
      ZSTD_compress(&packed[0], packed.size(), bytes.data(), bytes.size(), 3));
  return packed;
}

// In the order of the files, and again in the next epoch.
Config InOrder(const std::string& path) {
  Config config = Of(path, 16);
  config.set_lanes(1);
  config.set_cache_folder(NewFolder());
  return config;
}

// The first texts of the reader.
std::vector<std::string> Texts(const DatasetReader& reader, size_t count) {
  Ids ids;
  std::vector<std::string> texts;
  for (int64_t at = 0; texts.size() < count; at += 512) {
    std::vector<int64_t> samples(512);
    std::iota(samples.begin(), samples.end(), at);
    const auto more = Read(reader, samples);
    EXPECT_TRUE(more.ok()) << more.status();
    if (!more.ok()) return texts;
    ids.insert(ids.end(), more->begin(), more->end());
    texts = TextsIn(ids);
  }
  texts.resize(count);
  return texts;
}

// The first error, of the start or of a read.
std::string Error(const Config& config) {
  const auto stream = Make(config);
  if (!stream.ok()) return std::string(stream.status().message());
  std::vector<int64_t> samples(40000);
  std::iota(samples.begin(), samples.end(), 0);
  return std::string(Read(**stream, samples).status().message());
}

std::string Rows(int shard, int count) {
  std::string rows;
  for (int row = 0; row < count; ++row) rows += JsonRow(TextOf(shard, row));
  return rows;
}

std::vector<std::string> TextsOf(int shard, int count) {
  std::vector<std::string> texts;
  for (int row = 0; row < count; ++row) texts.push_back(TextOf(shard, row));
  return texts;
}

TEST(FormatsTest, JsonLines) {
  const std::string folder = NewFolder();
  // Several cells; blank lines; a byte order mark; no line end at the end.
  std::string rows = "\xef\xbb\xbf" + Rows(0, 1500) + "\n  \r\n";
  rows.insert(rows.find('\n') + 1, "\n");
  rows += JsonRow("the last");
  rows.pop_back();
  WriteFile(folder + "/a.jsonl", rows);
  std::vector<std::string> expected = TextsOf(0, 1500);
  expected.push_back("the last");
  // The second epoch begins behind.
  expected.push_back(expected[0]);
  EXPECT_THAT(Texts(*MustMake(InOrder(folder)), expected.size()),
              ElementsAreArray(expected));
}

TEST(FormatsTest, ARowLongerThanACell) {
  const std::string folder = NewFolder();
  const std::string text(900000, 'x');
  WriteFile(folder + "/a.jsonl",
            JsonRow("before") + JsonRow(text) + JsonRow("behind"));
  const auto texts = Texts(*MustMake(InOrder(folder)), 4);
  EXPECT_EQ(texts[0], "before");
  EXPECT_TRUE(texts[1] == text);
  EXPECT_EQ(texts[2], "behind");
  EXPECT_EQ(texts[3], "before");
}

TEST(FormatsTest, PackedJsonLines) {
  for (const bool gzip : {true, false}) {
    const std::string folder = NewFolder();
    const std::string ending = gzip ? ".jsonl.gz" : ".jsonl.zst";
    const auto pack = gzip ? Gzip : Zstd;
    // Of two members.
    WriteFile(folder + "/a" + ending,
              pack(Rows(0, 1000)) + pack(Rows(1, 1000)));
    WriteFile(folder + "/b" + ending, pack(Rows(2, 1000)));
    std::vector<std::string> expected;
    for (int shard = 0; shard < 3; ++shard) {
      const auto texts = TextsOf(shard, 1000);
      expected.insert(expected.end(), texts.begin(), texts.end());
    }
    const Config config = InOrder(folder);
    EXPECT_THAT(Texts(*MustMake(config), 3000), ElementsAreArray(expected));
    // Somewhere in the middle, and then before that.
    Config fresh = config;
    fresh.set_tokens(ON_THE_FLY);
    const auto stream = MustMake(fresh);
    const auto straight = MustMake(config);
    for (const int64_t i : {40000, 90000, 10000}) {
      EXPECT_EQ(MustRead(*stream, {i}), MustRead(*straight, {i}));
    }
  }
}

TEST(FormatsTest, Parquet) {
  const auto stream = MustMake(InOrder(absl::StrCat(kData, "rows.parquet")));
  EXPECT_THAT(stream->notes()[0], HasSubstr("4,000 rows"));
  auto expected = RowsOfTestdata(4000);
  expected.push_back(expected[0]);
  EXPECT_THAT(Texts(*stream, 4001), ElementsAreArray(expected));
  // Other rows of the same file, in another order.
  for (const int64_t i : {20000, 3, 30000}) MustRead(*stream, {i});
}

// Helpers end with the threads that have started them.
TEST(FormatsTest, ThreadsThatHaveReadMayEnd) {
  auto shards = ListShards(absl::StrCat(kData, "rows.parquet"));
  ASSERT_TRUE(shards.ok()) << shards.status();
  const auto texts = NewParquetTexts("text", &*shards);
  ASSERT_TRUE(texts.ok()) << texts.status();
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int64_t cell = 0; cell < (*shards)[0].cells; ++cell) {
        EXPECT_TRUE((*texts)->Read((*shards)[0], cell).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 3; ++i) {
    const auto documents = (*texts)->Read((*shards)[0], 0);
    ASSERT_TRUE(documents.ok()) << documents.status();
    EXPECT_EQ((*documents)[0].text, RowOfTestdata(0));
  }
}

TEST(FormatsTest, Tar) {
  auto expected = RowsOfTestdata(300);
  expected.push_back(expected[0]);
  EXPECT_THAT(
      Texts(*MustMake(InOrder(absl::StrCat(kData, "samples.tar"))), 301),
      ElementsAreArray(expected));
  // Long names.
  for (const char* name : {"pax.tar", "gnu.tar"}) {
    EXPECT_THAT(Texts(*MustMake(InOrder(absl::StrCat(kData, name))), 5),
                ElementsAreArray(RowsOfTestdata(5)));
  }
}

TEST(FormatsTest, TokenFiles) {
  const std::string folder = NewFolder();
  text::TokenFileInfo info;
  info.vocab_size = 257;
  info.tokenizer_hash = text::TokenizerHash("bytes");
  Ids all;
  for (const char* name : {"/a.tokens", "/b.tokens"}) {
    auto writer = text::TokenFileWriter::Create(folder + name, info);
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (int i = 0; i < 300; ++i) {
      Ids document(1000, (*name + i) % 256);
      document.push_back(kEos);
      ASSERT_TRUE((*writer)->Append(document).ok());
      (*writer)->EndDocument();
      all.insert(all.end(), document.begin(), document.end());
    }
    ASSERT_TRUE((*writer)->Close().ok());
  }
  Config config = InOrder(folder);
  const auto stream = MustMake(config);
  EXPECT_EQ(stream->size(), 600 * 1001 / 16);
  std::vector<int64_t> samples(600 * 1001 / 16);
  std::iota(samples.begin(), samples.end(), 0);
  all.resize(samples.size() * 16);
  EXPECT_TRUE(MustRead(*stream, samples) == all);
  config.set_shuffle(true);
  config.set_separate_documents(true);
  const auto positions = MustRead(*MustMake(config), samples, kPositions);
  EXPECT_EQ(*std::max_element(positions.begin(), positions.end()), 15);
  EXPECT_THAT(std::string(Make(config, "another").status().message()),
              AllOf(HasSubstr("isn't the one that"), HasSubstr("a.tokens")));
}

template <typename Token>
std::string BytesOf(const std::vector<Token>& tokens) {
  return std::string(reinterpret_cast<const char*>(tokens.data()),
                     tokens.size() * sizeof(Token));
}

TEST(FormatsTest, BareTokens) {
  std::vector<uint16_t> two(200000);
  std::vector<uint32_t> four(200000);
  for (size_t i = 0; i < two.size(); ++i) two[i] = four[i] = i * i % 257;
  const auto header = [](uint32_t magic, uint32_t tokens) {
    std::vector<uint32_t> header(256);
    header[0] = magic;
    header[1] = 1;
    header[2] = tokens;
    return BytesOf(header);
  };
  struct Case {
    std::string bytes;
    int64_t token_bytes;
  };
  for (const Case& c : {Case{BytesOf(two), 0}, Case{BytesOf(four), 4},
                        Case{header(20240520, 200000) + BytesOf(two), 0},
                        Case{header(20240801, 200000) + BytesOf(four), 0}}) {
    const std::string folder = NewFolder();
    WriteFile(folder + "/a.bin", c.bytes);
    Config config = InOrder(folder);
    config.set_token_bytes(c.token_bytes);
    const auto stream = MustMake(config);
    std::vector<int64_t> samples(200000 / 16);
    std::iota(samples.begin(), samples.end(), 0);
    ASSERT_EQ(stream->size(), samples.size());
    EXPECT_TRUE(MustRead(*stream, samples) == Ids(two.begin(), two.end()));
    WriteFile(folder + "/a.bin", c.bytes.substr(0, c.bytes.size() - 1));
    EXPECT_THAT(Error(config), AllOf(HasSubstr("a.bin is cut off"),
                                     HasSubstr("or set token_bytes")));
  }
  const std::string folder = NewFolder();
  two[150000] = 300;
  WriteFile(folder + "/a.bin", BytesOf(two));
  EXPECT_THAT(Error(InOrder(folder)),
              AllOf(HasSubstr("a.bin: token 150000 is 300"),
                    HasSubstr("the tokenizer has 257")));
}

TEST(FormatsTest, BadRows) {
  struct Case {
    std::string row;
    std::string why;
  };
  for (const Case& c :
       {Case{"{\"words\": \"x\"}", "has no \"text\": set text_field"},
        Case{"{\"text\": 5}", "\"text\" isn't a text"},
        Case{"{\"text\": \"x\"", "isn't JSON"}, Case{"[1]", "a JSON object"},
        Case{"{\"text\": \"\xff\"}", "isn't UTF-8"},
        Case{JsonRow(std::string(65 << 20, 'x')), "a document may have"}}) {
    const std::string folder = NewFolder();
    WriteFile(folder + "/a.jsonl", Rows(0, 700) + c.row + "\n" + Rows(1, 1500));
    Config config = InOrder(folder);
    // Not in a cell that the start looks at.
    std::string error;
    const auto stream = Make(config);
    if (!stream.ok()) {
      error = std::string(stream.status().message());
    } else {
      std::vector<int64_t> samples(60000);
      std::iota(samples.begin(), samples.end(), 0);
      error = std::string(Read(**stream, samples).status().message());
    }
    EXPECT_THAT(error, AllOf(HasSubstr("a.jsonl:701 "), HasSubstr(c.why),
                             HasSubstr("bad_rows: SKIP")));
    config.set_bad_rows(SKIP);
    auto expected = TextsOf(0, 700);
    const auto more = TextsOf(1, 1500);
    expected.insert(expected.end(), more.begin(), more.end());
    EXPECT_THAT(Texts(*MustMake(config), 2200), ElementsAreArray(expected))
        << c.why;
  }
}

TEST(FormatsTest, BadRowsOfParquetAndTar) {
  Config config = InOrder(absl::StrCat(kData, "null.parquet"));
  EXPECT_THAT(Error(config), AllOf(HasSubstr("null.parquet, row 7 has no text"),
                                   HasSubstr("bad_rows: SKIP")));
  config.set_bad_rows(SKIP);
  auto expected = RowsOfTestdata(20);
  expected.erase(expected.begin() + 7);
  EXPECT_THAT(Texts(*MustMake(config), 19), ElementsAreArray(expected));
  config = InOrder(absl::StrCat(kData, "not_utf8.parquet"));
  EXPECT_THAT(
      Error(config),
      AllOf(HasSubstr("not_utf8.parquet, row 3 has a text that isn't UTF-8"),
            HasSubstr("bad_rows: SKIP")));
  config.set_bad_rows(SKIP);
  expected = RowsOfTestdata(20);
  expected.erase(expected.begin() + 3);
  EXPECT_THAT(Texts(*MustMake(config), 19), ElementsAreArray(expected));
  config = InOrder(absl::StrCat(kData, "rows.parquet"));
  config.set_text_field("content");
  EXPECT_THAT(Error(config),
              AllOf(HasSubstr("no column \"content\""), HasSubstr("id, text"),
                    HasSubstr("set text_field")));
  config.set_text_field("id");
  EXPECT_THAT(Error(config), HasSubstr("isn't of texts"));
  config = InOrder(absl::StrCat(kData, "samples.tar"));
  config.set_text_field("content");
  EXPECT_THAT(Error(config),
              AllOf(HasSubstr("samples.tar, member data/0001.json"),
                    HasSubstr("has no \"content\"")));
}

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FormatsTest, DamagedParquet) {
  const std::string good = ReadFile(absl::StrCat(kData, "rows.parquet"));
  const std::string folder = NewFolder();
  const std::string path = folder + "/a.parquet";
  WriteFile(path, good.substr(0, good.size() - 100));
  EXPECT_THAT(Error(InOrder(folder)),
              AllOf(HasSubstr("a.parquet is cut off"),
                    HasSubstr("fetch or make it again")));
  // The footer's beginning.
  std::string bad = good;
  bad.replace(bad.size() - 300, 40, 40, '\xee');
  WriteFile(path, bad);
  EXPECT_THAT(Error(InOrder(folder)),
              HasSubstr("a.parquet can't be read as Parquet"));
  // Pages.
  bad = good;
  for (size_t at = 500; at < good.size() * 3 / 4; at += 500) bad[at] ^= 0x55;
  WriteFile(path, bad);
  EXPECT_THAT(Error(InOrder(folder)),
              HasSubstr("a.parquet can't be read as Parquet"));
  WriteFile(path, "x" + good);
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("doesn't begin with PAR1"));
}

TEST(FormatsTest, DamagedTar) {
  const std::string good = ReadFile(absl::StrCat(kData, "samples.tar"));
  const std::string folder = NewFolder();
  const std::string path = folder + "/a.tar";
  WriteFile(path, good.substr(0, 100000));
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("a.tar is cut off"));
  // In a member, and between two.
  for (const size_t blocks : {200, 201, 202}) {
    WriteFile(path, good.substr(0, blocks * 512));
    EXPECT_THAT(Error(InOrder(folder)),
                AllOf(HasSubstr("a.tar is damaged or cut off: at byte"),
                      HasSubstr("fetch or make it again")));
  }
  std::string bad = good;
  bad[512 * 2] ^= 1;  // a header's
  WriteFile(path, bad);
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("no header of a member"));
}

TEST(FormatsTest, AMemberThatIsTooLarge) {
  const std::string good = ReadFile(absl::StrCat(kData, "samples.tar"));
  const std::string folder = NewFolder();
  // The first member, of which a block is data, with another size.
  std::string header = good.substr(0, 512);
  const int64_t size = 65 << 20;
  header.replace(124, 12, absl::StrFormat("%011o", size) + std::string(1, 0));
  header.replace(148, 8, 8, ' ');
  int sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  header.replace(148, 8,
                 absl::StrFormat("%06o", sum) + std::string(1, 0) + " ");
  WriteFile(folder + "/a.tar",
            header + std::string(size, 'x') + good.substr(1024));
  Config config = InOrder(folder);
  EXPECT_THAT(Error(config),
              AllOf(HasSubstr("a.tar, member data/0000.txt has 68157440 bytes"),
                    HasSubstr("bad_rows: SKIP")));
  config.set_bad_rows(SKIP);
  EXPECT_EQ(Texts(*MustMake(config), 1)[0], RowOfTestdata(1));
}

TEST(FormatsTest, DamagedPackedRows) {
  const std::string packed = Zstd(Rows(0, 3000));
  const std::string folder = NewFolder();
  WriteFile(folder + "/a.jsonl.zst", packed.substr(0, packed.size() / 2));
  EXPECT_THAT(Error(InOrder(folder)),
              AllOf(HasSubstr("a.jsonl.zst can't be unpacked"),
                    HasSubstr("its end is missing")));
  fs::remove(folder + "/a.jsonl.zst");
  WriteFile(folder + "/a.jsonl", packed);
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("its name doesn't say so"));
  fs::remove(folder + "/a.jsonl");
  WriteFile(folder + "/a.jsonl.gz", Rows(0, 3));
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("is named as packed"));
}

TEST(FormatsTest, ShardsThatCantBe) {
  const std::string folder = NewFolder();
  WriteFile(folder + "/a.jsonl", Rows(0, 3));
  WriteFile(folder + "/b.jsonl", "");
  EXPECT_THAT(Error(InOrder(folder)), HasSubstr("b.jsonl is empty"));
  fs::remove(folder + "/b.jsonl");
  fs::copy(absl::StrCat(kData, "rows.parquet"), folder + "/b.parquet");
  EXPECT_THAT(Error(InOrder(folder)),
              AllOf(HasSubstr("two formats"), HasSubstr("b.parquet")));
  WriteFile(folder + "/c.xyz", "x");
  EXPECT_THAT(Error(InOrder(folder + "/c.xyz")), HasSubstr("c.xyz"));
  EXPECT_THAT(Error(InOrder(folder + "/*.csv")), HasSubstr("matches no file"));
  WriteFile(folder + "/d.jsonl", "\n\n");
  EXPECT_THAT(Error(InOrder(folder + "/d.jsonl")),
              HasSubstr("shards without texts"));
}

TEST(FormatsTest, AShardThatChangesOrGoes) {
  const std::string folder = NewFolder();
  WriteFile(folder + "/a.jsonl", Rows(0, 3000));
  WriteFile(folder + "/b.jsonl", Rows(1, 3000));
  Config config = InOrder(folder);
  config.set_workers(0);
  const auto stream = MustMake(config);
  MustRead(*stream, {0});
  std::vector<int64_t> samples(200000);
  std::iota(samples.begin(), samples.end(), 0);
  fs::rename(folder + "/b.jsonl", folder + "/c");
  EXPECT_THAT(std::string(Read(*stream, samples).status().message()),
              AllOf(HasSubstr("b.jsonl was there when the run began"),
                    HasSubstr("put it back")));
  WriteFile(folder + "/b.jsonl", Rows(1, 2999));
  EXPECT_THAT(std::string(Read(*stream, samples).status().message()),
              HasSubstr("b.jsonl has changed since the run began"));
  fs::rename(folder + "/c", folder + "/b.jsonl");
  EXPECT_TRUE(Read(*stream, samples).ok());
}

}  // namespace
}  // namespace capstan::stream
