// SPDX-License-Identifier: Apache-2.0
#include "datasets/chat/chat.h"

#include <ATen/core/Tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <isa-l/crc64.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "datasets/chat/row_index.h"
#include "text/chat_template/fake_tokenizer.h"

namespace capstan::chat {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A file in a folder of its own test.
std::string File(const std::string& name, const std::string& bytes) {
  const auto* const test =
      ::testing::UnitTest::GetInstance()->current_test_info();
  const std::string folder = ::testing::TempDir() + "/" + test->name();
  fs::create_directories(folder);
  const std::string path = folder + "/" + name;
  std::ofstream(path, std::ios::binary) << bytes;
  return path;
}

std::string TextRow(const std::string& text) {
  return absl::StrCat("{\"text\": \"", text, "\"}\n");
}

absl::StatusOr<std::unique_ptr<Chat>> Make(const Config& config,
                                           uint64_t tokenizer_hash = 1) {
  auto tokenizer = std::make_unique<FakeTokenizer>(
      std::vector<std::string>{"<|im_start|>", "<|im_end|>"});
  tokenizer->set_special_ids({-1, 257, 257});
  return Chat::Create(config, std::move(tokenizer), tokenizer_hash);
}

std::unique_ptr<Chat> MustMake(const Config& config) {
  auto chat = Make(config);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

Config Of(const std::string& path, int64_t max_length = 100) {
  Config config;
  config.set_path(path);
  config.set_max_length(max_length);
  return config;
}

std::vector<int64_t> Row(const Batch& batch, const char* name, int64_t row) {
  const at::Tensor& tensor = batch.at(name);
  const int64_t length = tensor.size(1);
  const int64_t* begin = tensor.const_data_ptr<int64_t>() + row * length;
  return {begin, begin + length};
}

std::vector<int64_t> Counts(const Batch& batch) {
  const at::Tensor& counts = batch.at(kTokenCounts);
  const int64_t* begin = counts.const_data_ptr<int64_t>();
  return {begin, begin + counts.numel()};
}

std::string TextOf(const DatasetReader& reader, int64_t index) {
  Batch batch;
  EXPECT_TRUE(reader.Read({index}, &batch).ok());
  return reader.tokenizer()->Decode(Row(batch, "input_ids", 0));
}

TEST(ChatTest, APromptIsWrittenAsTheRowsAre) {
  Config config = Of(File("t", TextRow("abc")));
  config.set_chat_template("chatml");
  const auto texts = MustMake(config);
  EXPECT_EQ(texts->tokenizer()->Decode(texts->PromptIds("Hi")), "Hi");
  config.set_path(File("c", R"({"question": "q", "answer": "a"})"));
  const auto chats = MustMake(config);
  EXPECT_EQ(chats->tokenizer()->Decode(chats->PromptIds("Hi")),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTest, BatchesArePaddedToTheirLongest) {
  const auto chat = MustMake(
      Of(File("a.jsonl", TextRow("ab") + TextRow("cdefg") + TextRow("hi"))));
  ASSERT_EQ(chat->size(), 3);
  Batch batch;
  ASSERT_TRUE(chat->Read({1, 0}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 1), ElementsAre('a', 'b', 257, 257, 257));
  EXPECT_THAT(Row(batch, "labels", 1), ElementsAre('a', 'b', -100, -100, -100));
  EXPECT_THAT(Row(batch, "labels", 0), ElementsAre('c', 'd', 'e', 'f', 'g'));
  EXPECT_THAT(Counts(batch), ElementsAre(5, 2));
  EXPECT_EQ(CountTokens(batch).padding, 3);
  EXPECT_EQ(batch.count("positions"), 0);
  EXPECT_EQ(chat->sample_length(1), 5);
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 0), ElementsAre('a', 'b'));
  EXPECT_THAT(Counts(batch), ElementsAre(2));
  EXPECT_FALSE(chat->Read({3}, &batch).ok());
  EXPECT_FALSE(chat->Read({-1}, &batch).ok());
  EXPECT_EQ(chat->max_sequence_length(), 100);
  EXPECT_THAT(chat->notes(), IsEmpty());
}

TEST(ChatTest, PacksRestartPositionsAndDoNotPredictAcrossRows) {
  Config config =
      Of(File("p.jsonl", TextRow("abc") + TextRow("defgh") + TextRow("ij")), 7);
  config.set_packing(BEST_FIT);
  const auto chat = MustMake(config);
  ASSERT_EQ(chat->size(), 2);  // defgh is packed with ij
  Batch batch;
  ASSERT_TRUE(chat->Read({0, 1}, &batch).ok());
  EXPECT_THAT(Row(batch, "input_ids", 1),
              ElementsAre('d', 'e', 'f', 'g', 'h', 'i', 'j'));
  EXPECT_THAT(Row(batch, "labels", 1),
              ElementsAre(-100, 'e', 'f', 'g', 'h', -100, 'j'));
  EXPECT_THAT(Row(batch, "positions", 1), ElementsAre(0, 1, 2, 3, 4, 0, 1));
  EXPECT_THAT(Row(batch, "labels", 0),
              ElementsAre(-100, 'b', 'c', -100, -100, -100, -100));
  EXPECT_THAT(Row(batch, "positions", 0), ElementsAre(0, 1, 2, 0, 1, 2, 3));
  EXPECT_THAT(Counts(batch), ElementsAre(3, 7));
  EXPECT_EQ(chat->sample_length(0), 0);
}

TEST(ChatTest, RowsWithoutATrainedTokenAreLeftOutAndCounted) {
  const std::string long_prompt(20, 'p');
  const auto chat = MustMake(Of(
      File("d.jsonl", absl::StrCat("{\"prompt\": \"", long_prompt,
                                   "\", \"completion\": \"c\"}\n", TextRow("x"),
                                   TextRow("0123456789abcdef"), TextRow("ok"))),
      10));
  ASSERT_EQ(chat->size(), 2);  // nothing predicts a single token
  EXPECT_EQ(TextOf(*chat, 0), "0123456789");
  EXPECT_EQ(TextOf(*chat, 1), "ok");
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("2 rows were left out, without a token "
                                    "to train on within max_length (10)"),
                          HasSubstr("1 of 2 rows lost their end")));
}

TEST(ChatTest, ABadRowIsAnErrorWithItsLineOrIsSkipped) {
  Config config = Of(File("b.jsonl", TextRow("one") + "\n{\"text\": 3}\n" +
                                         TextRow("two") + "{broken\n"));
  const auto chat = Make(config);
  ASSERT_FALSE(chat.ok());
  EXPECT_EQ(FieldOf(chat.status()), "path");
  EXPECT_THAT(std::string(chat.status().message()),
              HasSubstr("b.jsonl:3: \"text\" is a number, not a text"));
  config.set_bad_rows(SKIP);
  const auto skipped = MustMake(config);
  EXPECT_EQ(skipped->size(), 2);
  EXPECT_EQ(TextOf(*skipped, 1), "two");
  EXPECT_THAT(skipped->notes(),
              ElementsAre(HasSubstr("2 bad rows were left out, the first is")));
}

TEST(ChatTest, WhatTheConfigGetsWrongNamesItsField) {
  const std::string path = File("e.jsonl", TextRow("abc") + TextRow("def"));
  const auto expect = [](const Config& config, const std::string& field,
                         const std::string& words) {
    const auto chat = Make(config);
    ASSERT_FALSE(chat.ok()) << words;
    EXPECT_EQ(FieldOf(chat.status()), field);
    EXPECT_THAT(std::string(chat.status().message()), HasSubstr(words));
  };
  expect(Config(), "path", "is not set");
  expect(Of("/no/such"), "path", "/no/such can't be opened");
  expect(Of(path, 1), "max_length", ", or 0 for the default, is 1");
  Config config = Of(path);
  config.set_validation_fraction(1);
  expect(config, "validation_fraction", "[0, 1)");
  config = Of(path);
  config.set_chat_template("mistral");
  expect(config, "chat_template", "no chat template \"mistral\"");
  config.set_chat_template("gemma");
  expect(config, "chat_template", "no token <bos>");
  config = Of(path);
  config.add_source()->set_path(path);
  expect(config, "source", "together with path");
  config.clear_path();
  config.add_source()->set_path(path);
  config.mutable_source(0)->set_weight(1);
  expect(config, "source", "has the weight 0");
  config = Of(path);
  config.set_loss_on(ASSISTANT);
  config.set_bad_rows(SKIP);  // nothing that can be skipped
  expect(config, "path", "e.jsonl:1: a row is a plain text");
  const std::string chats = File("c.jsonl", R"({"question":"a","answer":"b"})");
  expect(Of(chats), "path", "the tokenizer has no chat template: set one of");
  expect(Of(File("blank", "\n\n")), "path", "has no row to train on");
  config = Of(File("same", TextRow("abc") + TextRow("abc")));
  config.set_validation_fraction(0.5);
  expect(config, "validation_fraction", "leave nothing to train on");
}

// 1,000 rows: "row 0", ..
std::string ManyRows() {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += TextRow(absl::StrCat("row ", i));
  return text;
}

TEST(ChatTest, ValidationIsApartAndTheSameInAnotherOrder) {
  Config config = Of(File("v.jsonl", ManyRows()));
  config.set_validation_fraction(0.1);
  config.set_shuffle(true);
  const auto chat = MustMake(config);
  const auto held = chat->Validation();
  ASSERT_TRUE(held.ok() && *held != nullptr);
  EXPECT_EQ((*held)->size(), 100);
  EXPECT_EQ(chat->size(), 900);
  EXPECT_TRUE(chat->shuffle());
  EXPECT_FALSE((*held)->shuffle());
  std::set<std::string> texts;
  for (int64_t i = 0; i < 900; ++i) texts.insert(TextOf(*chat, i));
  std::set<std::string> held_texts;
  for (int64_t i = 0; i < 100; ++i) held_texts.insert(TextOf(**held, i));
  texts.insert(held_texts.begin(), held_texts.end());
  EXPECT_EQ(texts.size(), 1000);
  // From the end to the beginning, and some rows twice.
  std::string reversed;
  for (int i = 999; i >= 0; --i) {
    reversed += TextRow(absl::StrCat("row ", i));
  }
  config.set_path(File("r.jsonl", reversed));
  const auto again = MustMake(config)->Validation();
  ASSERT_TRUE(again.ok());
  std::set<std::string> again_texts;
  for (int64_t i = 0; i < 100; ++i) again_texts.insert(TextOf(**again, i));
  EXPECT_EQ(again_texts, held_texts);
}

TEST(ChatTest, SourcesAreMixedByWeight) {
  Config config;
  config.set_max_length(50);
  for (const char* name : {"a", "b"}) {
    Source* source = config.add_source();
    source->set_path(File(name, TextRow(std::string(name) + "1") +
                                    TextRow(std::string(name) + "2")));
  }
  const auto plain = MustMake(config);
  EXPECT_EQ(plain->size(), 4);
  EXPECT_EQ(TextOf(*plain, 2), "b1");
  config.mutable_source(0)->set_weight(1);
  config.mutable_source(1)->set_weight(3);
  const auto mixed = MustMake(config);
  ASSERT_EQ(mixed->size(), 8);
  std::multiset<std::string> texts;
  for (int64_t i = 0; i < 8; ++i) texts.insert(TextOf(*mixed, i));
  EXPECT_EQ(texts.count("a1"), 1);
  EXPECT_EQ(texts.count("b1"), 3);
}

std::vector<std::string> CachedFiles(const std::string& data) {
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(data).parent_path() / ".capstan")) {
    if (entry.path().filename() != "lock") names.push_back(entry.path());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(ChatTest, TheIndexIsKeptAndMadeAnewWhenItMustBe) {
  const std::string path = File("k.jsonl", ManyRows());
  MustMake(Of(path));
  const std::vector<std::string> files = CachedFiles(path);
  ASSERT_EQ(files.size(), 1);
  const auto written = fs::last_write_time(files[0]);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  EXPECT_EQ(fs::last_write_time(files[0]), written);
  EXPECT_EQ(CachedFiles(path).size(), 1);
  // A different tokenizer or setting makes a different index.
  ASSERT_TRUE(Make(Of(path), 2).ok());
  ASSERT_TRUE(Make(Of(path, 5)).ok());
  EXPECT_EQ(CachedFiles(path).size(), 3);
  // A broken one.
  fs::resize_file(files[0], 300);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  // A different file of that name.
  File("k.jsonl", TextRow("only"));
  EXPECT_EQ(MustMake(Of(path))->size(), 1);
}

std::string ReadBytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

Config Packed(const std::string& path) {
  Config config = Of(path, 50);
  config.set_packing(BEST_FIT);
  config.set_validation_fraction(0.1);
  return config;
}

// All of its tokens, in order.
std::vector<int64_t> AllIds(const Chat& chat) {
  std::vector<int64_t> ids;
  Batch batch;
  for (int64_t i = 0; i < chat.size(); ++i) {
    EXPECT_TRUE(chat.Read({i}, &batch).ok());
    const std::vector<int64_t> row = Row(batch, "input_ids", 0);
    ids.insert(ids.end(), row.begin(), row.end());
  }
  return ids;
}

// One flipped bit made 11 of 20 runs crash, and 4 train on other data.
TEST(ChatTest, ADamagedCacheIsMadeAgain) {
  const std::string path = File("f.jsonl", ManyRows());
  const std::vector<int64_t> ids = AllIds(*MustMake(Packed(path)));
  const std::vector<std::string> files = CachedFiles(path);
  ASSERT_EQ(files.size(), 1);
  const std::string good = ReadBytes(files[0]);
  for (uint64_t i = 0; i < 40; ++i) {
    std::string bad = good;
    bad[RandomBelow(1, i, bad.size())] ^= 1 << (i % 8);
    WriteBytes(files[0], bad);
    EXPECT_EQ(AllIds(*MustMake(Packed(path))), ids) << i;
    EXPECT_EQ(ReadBytes(files[0]), good);
  }
}

// With a checksum that fits: whoever can write the folder can do that.
TEST(ChatTest, AForgedCacheIsMadeAgain) {
  const std::string path = File("f.jsonl", ManyRows());
  for (const Packing packing : {BEST_FIT, BEST_FIT_SPLIT, WRAPPED}) {
    Config config = Packed(path);
    config.set_packing(packing);
    const std::vector<int64_t> ids = AllIds(*MustMake(config));
    const std::vector<std::string> files = CachedFiles(path);
    ASSERT_EQ(files.size(), 1);
    const std::string& file = files[0];
    const std::string good = ReadBytes(file);
    for (uint64_t i = 0; i < 100; ++i) {
      std::string bad = good;
      const size_t contents = bad.size() - 40;
      const size_t at = RandomBelow(2, i, contents / 4) * 4;
      // Small numbers and great ones.
      const uint32_t number = i % 2 == 0 ? i : ~uint32_t{0};
      bad.replace(at, 4, reinterpret_cast<const char*>(&number), 4);
      const auto crc = [&bad](size_t from, size_t bytes) {
        const uint64_t sum = crc64_ecma_refl(
            0, reinterpret_cast<const unsigned char*>(&bad[from]), bytes);
        return std::string(reinterpret_cast<const char*>(&sum), sizeof(sum));
      };
      bad.replace(bad.size() - 16, 8, crc(0, contents));
      bad.replace(bad.size() - 8, 8, crc(contents, 32));
      WriteBytes(file, bad);
      const auto chat = Make(config);
      if (!chat.ok()) continue;  // its facts say that there is nothing in it
      Batch batch;
      for (int64_t sample = 0; sample < (*chat)->size(); ++sample) {
        (*chat)->Read({sample}, &batch).IgnoreError();
      }
    }
    WriteBytes(file, good);
    EXPECT_EQ(AllIds(*MustMake(config)), ids);
    fs::remove(file);
  }
}

TEST(ChatTest, ACacheThatChangesMeanwhileIsAnError) {
  const std::string path = File("c.jsonl", ManyRows());
  const auto chat = MustMake(Packed(path));
  const std::string file = CachedFiles(path)[0];
  std::fstream(file, std::ios::in | std::ios::out)
      << std::string(fs::file_size(file), '\x7f');
  Batch batch;
  EXPECT_TRUE(absl::IsDataLoss(chat->Read({3}, &batch)));
  fs::resize_file(file, 0);
  const absl::Status cut = chat->Read({3}, &batch);
  EXPECT_TRUE(absl::IsDataLoss(cut)) << cut;
}

TEST(ChatTest, WithoutAFolderForItsIndexItIsKeptInAFileWithoutAName) {
  const std::string path = File("n.jsonl", ManyRows());
  const fs::path in_the_way = fs::path(path).parent_path() / ".capstan";
  WriteBytes(in_the_way, "a file");
  setenv("XDG_CACHE_HOME", in_the_way.c_str(), 1);
  testing::internal::CaptureStderr();
  const auto chat = MustMake(Packed(path));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("n.jsonl: what is made of it is kept for this run "
                        "only, as no folder for it can be written"));
  EXPECT_GT(AllIds(*chat).size(), 1000);
  setenv("TMPDIR", in_the_way.c_str(), 1);
  EXPECT_THAT(std::string(Make(Packed(path)).status().message()),
              HasSubstr("n.jsonl: what is made of it can be kept nowhere"));
  unsetenv("TMPDIR");
  unsetenv("XDG_CACHE_HOME");
}

// Makes `folder` a file system of 8 kB, for this process only.
bool MountSmall(const std::string& folder) {
  const std::string user = absl::StrCat("0 ", getuid(), " 1");
  const std::string group = absl::StrCat("0 ", getgid(), " 1");
  if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  WriteBytes("/proc/self/setgroups", "deny");
  WriteBytes("/proc/self/uid_map", user);
  WriteBytes("/proc/self/gid_map", group);
  return mount("none", folder.c_str(), "tmpfs", 0, "size=8k") == 0;
}

TEST(ChatTest, IfTheFolderIsFullTheIndexIsKeptElsewhere) {
  const std::string path = File("full.jsonl", ManyRows());
  const std::string folder =
      (fs::path(path).parent_path() / ".capstan").string();
  fs::create_directories(folder);
  const pid_t child = fork();
  if (child == 0) {
    if (!MountSmall(folder)) _exit(2);
    setenv("XDG_CACHE_HOME", folder.c_str(), 1);
    testing::internal::CaptureStderr();
    const auto chat = Make(Of(path));
    const std::string notes = testing::internal::GetCapturedStderr();
    // Nothing partial is left there.
    int files = 0;
    for (const auto& entry : fs::recursive_directory_iterator(folder)) {
      files += entry.is_regular_file() && entry.path().filename() != "lock";
    }
    const bool right =
        chat.ok() && (*chat)->size() == 1000 && files == 0 &&
        notes.find("No space left on device") != std::string::npos;
    _exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 2) {
    GTEST_SKIP() << "mounting a small file system isn't allowed here";
  }
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

// Not even if root could.
TEST(ChatTest, AFolderThatNobodyMayWriteIsLeftAlone) {
  const std::string path = File("w.jsonl", ManyRows());
  const fs::path folder = fs::path(path).parent_path();
  const std::string cache = ::testing::TempDir() + "/cache";
  setenv("XDG_CACHE_HOME", cache.c_str(), 1);
  fs::permissions(folder, fs::perms::owner_read | fs::perms::owner_exec);
  EXPECT_EQ(MustMake(Of(path))->size(), 1000);
  fs::permissions(folder, fs::perms::owner_all);
  EXPECT_FALSE(fs::exists(folder / ".capstan"));
  EXPECT_FALSE(fs::is_empty(cache + "/capstan"));
}

TEST(ChatTest, AFileThatChangesMeanwhileIsAnError) {
  const std::string path = File("m.jsonl", TextRow("abc") + TextRow("def"));
  const auto chat = MustMake(Of(path));
  std::fstream(path, std::ios::in | std::ios::out) << TextRow("a\\n");
  Batch batch;
  const absl::Status status = chat->Read({0}, &batch);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("m.jsonl:1: the file has changed"));
}

// Of the same length, and with as many tokens.
TEST(ChatTest, ARowThatChangesMeanwhileIsAnError) {
  const std::string path = File("s.jsonl", TextRow("abc") + TextRow("def"));
  const auto chat = MustMake(Of(path));
  std::fstream(path, std::ios::in | std::ios::out) << TextRow("abd");
  Batch batch;
  EXPECT_THAT(std::string(chat->Read({0}, &batch).message()),
              HasSubstr("s.jsonl:1: the file has changed"));
  fs::resize_file(path, 3);
  EXPECT_THAT(std::string(chat->Read({0}, &batch).message()),
              HasSubstr("s.jsonl became shorter"));
}

// A row of some MB among short ones.
TEST(ChatTest, ARowLongerThanAnything) {
  const auto chat = MustMake(
      Of(File("l.jsonl", TextRow("ab") + TextRow(std::string(5 << 20, 'x')) +
                             TextRow("cd"))));
  ASSERT_EQ(chat->size(), 3);
  EXPECT_EQ(TextOf(*chat, 1), std::string(100, 'x'));
  EXPECT_EQ(TextOf(*chat, 2), "cd");
}

// However the file is cut, with any number of threads.
TEST(IndexRowsTest, RowsAndTheFirstErrorDoNotDependOnChunks) {
  std::string text = ManyRows();
  const std::string good = File("g.jsonl", text);
  text.insert(text.find("{\"text\": \"row 700"), "[]\n");
  text.insert(text.find("{\"text\": \"row 600"), "{}\n");
  const std::string bad = File("b.jsonl", text);
  const FakeTokenizer tokenizer({});
  const RowEncoder encoder(&tokenizer, nullptr, absl::OkStatus(), ALL, 100);
  for (uint64_t chunk : {uint64_t{1}, uint64_t{300}, uint64_t{1} << 30}) {
    SourceFile source = *OpenSource(good);
    std::vector<uint64_t> offsets;
    const auto facts = IndexRows(source, {AUTO, ERROR, &encoder, false, chunk},
                                 [&](const IndexedRows& some) {
                                   for (const IndexedRow& row : some.rows) {
                                     offsets.push_back(row.offset);
                                   }
                                   return absl::OkStatus();
                                 });
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_EQ(facts->rows, 1000);
    EXPECT_EQ(facts->longest, 7);
    EXPECT_EQ(offsets.size(), 1000);
    EXPECT_TRUE(std::is_sorted(offsets.begin(), offsets.end()));
    source = *OpenSource(bad);
    EXPECT_THAT(
        std::string(
            IndexRows(source, {AUTO, ERROR, &encoder, false, chunk},
                      [](const IndexedRows&) { return absl::OkStatus(); })
                .status()
                .message()),
        HasSubstr("b.jsonl:601: is an object without keys"));
  }
}

TEST(ChatTest, ATemplateMayBeAFileWithVariables) {
  Config config =
      Of(File("a.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                         R"({"role": "assistant", "content": "b"}]})"
                         "\n"));
  config.set_chat_template_file(File(
      "own.jinja",
      "{% for m in messages %}{% if m.content == 'refused' %}"
      "{{ raise_exception('no') }}{% endif %}{{ m.role[0] ~ sign ~ m.content }}"
      "<|im_end|>{% endfor %}{% if add_generation_prompt %}a{{ sign }}"
      "{% endif %}"));
  config.set_chat_template_kwargs(R"({"sign": ":"})");
  const auto chat = MustMake(config);
  ASSERT_NE(chat, nullptr);
  Batch batch;
  ASSERT_TRUE(chat->Read({0}, &batch).ok());
  const std::string text = "u:a|a:b|";
  std::vector<int64_t> ids(text.begin(), text.end());
  std::replace(ids.begin(), ids.end(), int64_t{'|'}, int64_t{257});
  EXPECT_EQ(Row(batch, kInputIds, 0), ids);
  // It is what the model is saved with, and asked in.
  EXPECT_THAT(chat->tokenizer()->chat_template(), HasSubstr("m.role[0]"));
  ids.assign({'u', ':', 'x', 257, 'a', ':'});
  EXPECT_EQ(chat->PromptIds("x"), ids);
  // Nothing of its own making in place of a turn that can't be written.
  EXPECT_THROW(chat->PromptIds("refused"), std::invalid_argument);

  const auto error = [](const Config& wrong) {
    return std::string(Make(wrong).status().message());
  };
  config.set_chat_template_kwargs(R"({"sign": "", "enable_thinking": 1})");
  EXPECT_THAT(error(config),
              HasSubstr("sets \"enable_thinking\", which the template"));
  config.set_chat_template_kwargs(R"({"sig": ":"})");
  EXPECT_THAT(error(config), HasSubstr("sets \"sig\", which the template"));
  config.set_chat_template_kwargs("false");
  EXPECT_THAT(error(config), HasSubstr("isn't a JSON object"));
  config.clear_chat_template_kwargs();
  config.set_chat_template("chatml");
  EXPECT_THAT(error(config), HasSubstr("together with chat_template"));
  config.clear_chat_template_file();
  config.set_chat_template("own.jinja");
  EXPECT_THAT(error(config), HasSubstr("set chat_template_file"));
}

TEST(ChatTest, ToolsThatATemplateDoesntWriteAreNoted) {
  const std::string talk =
      R"("messages": [{"role": "user", "content": "a"}, {"role": )"
      R"("assistant", "content": "b"}]})"
      "\n";
  Config config =
      Of(File("a.jsonl", "{" + talk + R"({"tools": [{"name": "f"}], )" + talk));
  config.set_chat_template("chatml");
  config.set_max_length(1000);
  const auto chat = MustMake(config);
  ASSERT_NE(chat, nullptr);
  EXPECT_THAT(chat->notes(),
              ElementsAre(HasSubstr("1 row has tools or calls that the "
                                    "template doesn't write")));
}

}  // namespace
}  // namespace capstan::chat
