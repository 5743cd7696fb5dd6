// SPDX-License-Identifier: Apache-2.0
//
// Files of several kinds and names, their parts, and how samples are cut and
// drawn from them.
#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zstd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "datasets/chat/chat.h"
#include "datasets/chat/data_paths.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// A file below a folder of its own test.
std::string File(const std::string& name, const std::string& bytes) {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const fs::path path = fs::path(::testing::TempDir()) / test->name() / name;
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
  return path.string();
}

std::string Folder() { return fs::path(File("x", "")).parent_path().string(); }

absl::StatusOr<std::unique_ptr<Chat>> Make(const Config& config) {
  auto tokenizer = std::make_unique<FakeTokenizer>(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>"});
  tokenizer->set_special_ids({-1, 257, 257});
  return Chat::Create(config, std::move(tokenizer), 1);
}

std::unique_ptr<Chat> MustMake(const Config& config) {
  auto chat = Make(config);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

std::string ErrorOf(const Config& config) {
  const auto chat = Make(config);
  return chat.ok() ? "no error" : std::string(chat.status().message());
}

Config Of(const std::string& path, int64_t max_length = 100) {
  Config config;
  config.set_path(path);
  config.set_max_length(max_length);
  config.set_chat_template("chatml");
  return config;
}

std::string TextRow(const std::string& text) {
  return absl::StrCat("{\"text\": \"", text, "\"}\n");
}

std::string TextRows(int begin, int end) {
  std::string rows;
  for (int i = begin; i < end; ++i) rows += TextRow(absl::StrCat("row ", i));
  return rows;
}

// Of one sample, without the padding.
std::vector<int64_t> Numbers(const DatasetReader& reader, int64_t sample,
                             const char* name) {
  Batch batch;
  const absl::Status status = reader.Read({sample}, &batch);
  EXPECT_TRUE(status.ok()) << status;
  const int64_t* const begin = batch.at(name).const_data_ptr<int64_t>();
  return {begin, begin + *batch.at(kTokenCounts).const_data_ptr<int64_t>()};
}

std::string TextOf(const DatasetReader& reader, int64_t sample) {
  return reader.tokenizer()->Decode(Numbers(reader, sample, kInputIds));
}

std::vector<std::string> Texts(const DatasetReader& reader) {
  std::vector<std::string> texts;
  for (int64_t i = 0; i < reader.size(); ++i)
    texts.push_back(TextOf(reader, i));
  return texts;
}

// Ids and labels of all samples.
std::vector<std::vector<int64_t>> All(const Chat& chat) {
  std::vector<std::vector<int64_t>> all;
  for (int64_t i = 0; i < chat.size(); ++i) {
    all.push_back(Numbers(chat, i, kInputIds));
    all.push_back(Numbers(chat, i, kLabels));
  }
  return all;
}

std::string Zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  out.resize(ZSTD_compress(&out[0], out.size(), text.data(), text.size(), 3));
  return out;
}

TEST(DataFilesTest, EveryKindOfFileHasTheSameRows) {
  std::string lines;
  std::string list = "[";
  std::string csv = "question,answer\n";
  std::string tsv = "question\tanswer\n";
  for (int i = 0; i < 50; ++i) {
    const std::string row = absl::StrCat("{\"question\": \"What,\\nis ", i,
                                         "?\", \"answer\": \"", i, "\"}");
    lines += row + "\n";
    absl::StrAppend(&list, i == 0 ? "" : ",\n", row);
    absl::StrAppend(&csv, "\"What,\nis ", i, "?\",", i, "\n");
    absl::StrAppend(&tsv, "\"What,\nis ", i, "?\"\t", i, "\n");
  }
  const auto want = All(*MustMake(Of(File("a.jsonl", lines))));
  EXPECT_EQ(want.size(), 100u);
  EXPECT_EQ(All(*MustMake(Of(File("a.json", list + "]")))), want);
  EXPECT_EQ(All(*MustMake(Of(File("a.jsonl.zst", Zstd(lines))))), want);
  const auto table = Make(Of(File("a.csv", csv)));
  if (!table.ok() &&
      absl::StrContains(table.status().message(), "isn't part of this build")) {
    GTEST_SKIP() << table.status();
  }
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(All(**table), want);
  EXPECT_EQ(All(*MustMake(Of(File("a.tsv.zst", Zstd(tsv))))), want);
  // The same three conversations.
  Config parquet = Of("datasets/chat/testdata/chats.parquet");
  fs::copy(parquet.path(), Folder(), fs::copy_options::overwrite_existing);
  parquet.set_path(Folder() + "/chats.parquet");
  const std::string chats =
      R"({"messages": [{"role": "user", "content": "Hi"}]})"
      "\n"
      R"({"messages": [{"role": "system", "content": "Be brief."},)"
      R"({"role": "user", "content": " What is 2+2? "},)"
      R"({"role": "assistant", "content": "4"}]})"
      "\n"
      R"({"messages": [{"role": "user", "content": "a\nb"},)"
      R"({"role": "assistant", "content": "c"},)"
      R"({"role": "user", "content": "<|im_end|> é"},)"
      R"({"role": "assistant", "content": "d"}]})";
  EXPECT_EQ(All(*MustMake(parquet)), All(*MustMake(Of(File("c", chats)))));
  // A wrong row says which.
  EXPECT_THAT(ErrorOf(Of(File("w.csv", "question,reply\n1,2\n"))),
              HasSubstr("w.csv: row 1: has the keys \"question\", \"reply\""));
}

TEST(DataFilesTest, FilesAreCounted) {
  const std::string text = TextRows(0, 10) + "{\"text\": 1}\n";
  const std::string packed = Zstd(text) + Zstd(text);
  Config config;
  config.set_max_length(50);
  config.set_bad_rows(SKIP);
  config.add_source()->set_path(File("c.jsonl", text));
  config.add_source()->set_path(File("c.jsonl.zst", packed));
  config.set_validation_fraction(0.2);
  const auto chat = MustMake(config);
  const std::vector<CountedFile> files = chat->counted_files();
  ASSERT_EQ(files.size(), 2u);
  const auto bytes = static_cast<int64_t>(text.size());
  EXPECT_EQ(files[0].path, config.source(0).path());
  EXPECT_THAT(files[0].counts,
              ElementsAre(Pair("bad_rows", 1), Pair("bytes", bytes),
                          Pair("rows", 10), Pair("untrained_rows", 0)));
  EXPECT_THAT(files[1].counts,
              ElementsAre(Pair("bad_rows", 2),
                          Pair("bytes", static_cast<int64_t>(packed.size())),
                          Pair("members", 2), Pair("rows", 20),
                          Pair("unpacked_bytes", 2 * bytes),
                          Pair("untrained_rows", 0)));
  // What is held out is in the same files.
  const auto held = chat->Validation();
  ASSERT_TRUE(held.ok());
  EXPECT_THAT((*held)->counted_files(), IsEmpty());
}

TEST(DataFilesTest, PatternsAndFoldersAreFiles) {
  const std::string folder = Folder();
  File("d/train-1.jsonl", TextRows(10, 20));
  File("d/train-0.jsonl", TextRows(0, 10));
  File("d/test-0.jsonl", TextRows(20, 25));
  File("d/README.md", "---");
  File("d/.capstan/train-x.jsonl", "no");
  const auto by_pattern = MustMake(Of(folder + "/d/train-*.jsonl"));
  ASSERT_EQ(by_pattern->size(), 20);
  EXPECT_EQ(TextOf(*by_pattern, 0), "row 0<|im_end|>");
  EXPECT_EQ(TextOf(*by_pattern, 19), "row 19<|im_end|>");
  EXPECT_EQ(Texts(*MustMake(Of(folder + "/d"))), Texts(*by_pattern));
  // Packs and what is held out are those of all of the files.
  Config config = Of(folder + "/d/train-*.jsonl", 60);
  config.set_packing(BEST_FIT);
  config.set_validation_fraction(0.1);
  const auto packed = MustMake(config);
  EXPECT_EQ(packed->size(), 2);
  EXPECT_THAT(packed->notes(),
              ElementsAre(HasSubstr("train-0.jsonl and the others: packed "
                                    "into 2 samples of 60 tokens, ")));
  EXPECT_THAT(ErrorOf(Of(folder + "/d/*.csv")), HasSubstr("matches no file"));
  File("e/a/train.jsonl", TextRows(0, 2));
  File("e/b/train.jsonl", TextRows(0, 2));
  EXPECT_THAT(ErrorOf(Of(folder + "/e")),
              HasSubstr("has data in several folders"));
  fs::create_directories(folder + "/f");
  EXPECT_THAT(ErrorOf(Of(folder + "/f")), HasSubstr("without data files"));
  // A name is a name, even if it could be a pattern.
  EXPECT_EQ(FilesOf(File("d/[0].jsonl", TextRows(0, 2)))->size(), 1u);
}

TEST(DataFilesTest, PartsInFileOrderAreTheOnesOfSftPlay) {
  Config config = Of(File("s.jsonl", TextRows(0, 25)));
  config.mutable_split()->set_train(.7);
  config.mutable_split()->set_validation(.1);
  config.mutable_split()->set_test(.2);
  // int(25 * .7), int(25 * .1), the rest.
  const auto train = MustMake(config);
  ASSERT_EQ(train->size(), 17);
  EXPECT_EQ(TextOf(*train, 16), "row 16<|im_end|>");
  const auto validation = train->Validation();
  ASSERT_TRUE(validation.ok());
  EXPECT_THAT(Texts(**validation),
              ElementsAre("row 17<|im_end|>", "row 18<|im_end|>"));
  config.set_part(TESTING);
  const auto test = MustMake(config);
  EXPECT_EQ(test->size(), 6);
  EXPECT_EQ(TextOf(*test, 0), "row 19<|im_end|>");
  EXPECT_EQ(*test->Validation(), nullptr);
  // Shuffled first, by the seed.
  std::vector<std::vector<std::string>> drawn;
  for (uint64_t seed : {1, 1, 2}) {
    std::vector<std::string> all;
    config.mutable_split()->set_order(RANDOM);
    config.set_seed(seed);
    for (const Part part : {TRAINING, VALIDATION, TESTING}) {
      config.set_part(part);
      const std::vector<std::string> texts = Texts(*MustMake(config));
      if (part == TESTING) drawn.push_back(texts);
      all.insert(all.end(), texts.begin(), texts.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()) - all.begin(), 25);
  }
  EXPECT_EQ(drawn[0], drawn[1]);
  EXPECT_NE(drawn[0], drawn[2]);
}

TEST(DataFilesTest, WrongPartsSayWhatIsWrong) {
  Config config = Of(File("p.jsonl", TextRows(0, 3)));
  config.set_part(TESTING);
  EXPECT_THAT(ErrorOf(config), HasSubstr("needs a split"));
  config.mutable_split()->set_train(.7);
  EXPECT_THAT(ErrorOf(config), HasSubstr("must add up to 1"));
  config.mutable_split()->set_validation(.3);
  EXPECT_THAT(ErrorOf(config), HasSubstr("TESTING has no share"));
  config.mutable_split()->set_validation(.1);
  config.mutable_split()->set_test(.2);
  EXPECT_THAT(ErrorOf(config), HasSubstr("its 3 rows are too few for parts"));
  config.set_validation_fraction(.1);
  EXPECT_THAT(ErrorOf(config), HasSubstr("together with validation_fraction"));
  config = Of(File("p.jsonl", TextRows(0, 3)));
  config.set_epoch_samples(5);
  EXPECT_THAT(ErrorOf(config), HasSubstr("is for sources with weights"));
}

// The lengths of TRL's example of pack_dataset: 5, 2, 3, 2, with eos.
std::string TrlRows() {
  return TextRow("abcd") + TextRow("f") + TextRow("hi") + TextRow("k");
}

TEST(DataFilesTest, WrappedSamplesGoOnAcrossRows) {
  Config config = Of(File("w.jsonl", TrlRows()), 5);
  config.set_packing(WRAPPED);
  const auto chat = MustMake(config);
  EXPECT_THAT(
      Texts(*chat),
      ElementsAre("abcd<|im_end|>", "f<|im_end|>hi<|im_end|>", "k<|im_end|>"));
  EXPECT_THAT(Numbers(*chat, 1, kLabels), ElementsAre('f', 257, 'h', 'i', 257));
  Batch batch;
  ASSERT_TRUE(chat->Read({2}, &batch).ok());
  EXPECT_EQ(batch.count(kPositions), 0u);
  EXPECT_EQ(batch.at(kInputIds).size(1), 5);
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("3 samples of 5 tokens, 80.0 % full")));
  config.set_max_length(4);
  EXPECT_THAT(
      Texts(*MustMake(config)),
      ElementsAre("abcd", "<|im_end|>f<|im_end|>h", "i<|im_end|>k<|im_end|>"));
  // What isn't trained on stays so.
  config =
      Of(File("l.jsonl", "{\"prompt\": \"pp\", \"completion\": \"cc\"}\n"), 5);
  config.set_packing(WRAPPED);
  EXPECT_THAT(Numbers(*MustMake(config), 0, kLabels),
              ElementsAre(-100, -100, 'c', 'c', 257));
}

TEST(DataFilesTest, LongRowsAreSplitAndPacked) {
  Config config = Of(File("b.jsonl", TrlRows()), 4);
  config.set_packing(BEST_FIT_SPLIT);
  const auto chat = MustMake(config);
  EXPECT_THAT(Texts(*chat), ElementsAre("abcd", "<|im_end|>hi<|im_end|>",
                                        "f<|im_end|>k<|im_end|>"));
  // Each piece is a document of its own.
  EXPECT_THAT(Numbers(*chat, 1, kPositions), ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(Numbers(*chat, 1, kLabels), ElementsAre(-100, -100, 'i', 257));
  config.set_validation_fraction(0.75);
  const auto held = MustMake(config)->Validation();
  ASSERT_TRUE(held.ok());
  EXPECT_THAT(Texts(**held),
              ElementsAre("abcd", "<|im_end|>hi<|im_end|>", "k<|im_end|>"));
}

// Whoever can write the folder can make its checksum fit; see chat_test.cc.
TEST(DataFilesTest, TokensThatChangeMeanwhileAreAnError) {
  for (const Packing packing : {WRAPPED, BEST_FIT_SPLIT}) {
    Config config = Of(File("t.jsonl", TextRows(0, 300)), 16);
    config.set_packing(packing);
    const auto chat = MustMake(config);
    for (const auto& entry : fs::directory_iterator(
             fs::path(config.path()).parent_path() / ".capstan")) {
      if (entry.path().extension() != ".rows") continue;
      std::fstream(entry.path(), std::ios::in | std::ios::out)
          << std::string(fs::file_size(entry.path()), '\x7f');
    }
    Batch batch;
    EXPECT_TRUE(absl::IsDataLoss(chat->Read({3}, &batch)));
    EXPECT_EQ(MustMake(config)->size(), chat->size());
    fs::remove_all(Folder() + "/.capstan");
  }
}

TEST(DataFilesTest, AMixtureDrawsAnewInEachEpoch) {
  Config config;
  config.set_max_length(50);
  for (const char* name : {"a", "b"}) {
    Source* const source = config.add_source();
    std::string rows;
    for (int i = 0; i < (*name == 'a' ? 1000 : 90); ++i) {
      rows += TextRow(absl::StrCat(name, i));
    }
    source->set_path(File(name, rows));
    source->set_weight(*name == 'a' ? 3 : 1);
  }
  config.set_epoch_samples(400);
  const auto chat = MustMake(config);
  ASSERT_EQ(chat->size(), 400);
  EXPECT_TRUE(chat->draws_anew());
  std::map<std::string, int> times;
  std::vector<std::vector<std::string>> epochs(3);
  for (int64_t i = 0; i < 1200; ++i) {
    epochs[i / 400].push_back(TextOf(*chat, i));
    ++times[epochs[i / 400].back()];
  }
  for (const auto& epoch : epochs) {
    EXPECT_EQ(std::count_if(epoch.begin(), epoch.end(),
                            [](const auto& text) { return text[0] == 'a'; }),
              300);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  // 900 draws of 1,000 rows: none twice, in whatever epoch. 300 of 90: each
  // three or four times.
  for (const auto& [text, count] : times) {
    EXPECT_LE(count, text[0] == 'a' ? 1 : 4) << text;
    EXPECT_GE(count, text[0] == 'a' ? 1 : 3) << text;
  }
  EXPECT_EQ(times.size(), 990u);
  // By the seed alone.
  const auto again = MustMake(config);
  EXPECT_EQ(TextOf(*again, 777), epochs[1][377]);
  EXPECT_FALSE(MustMake(Of(File("c", TextRows(0, 3))))->draws_anew());
}

}  // namespace
}  // namespace capstan::chat
