// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "plugins/sdk/tokenizer.h"
#include "text/tokens/token_file.h"
#include "trainer/commands/commands.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<int64_t>;

constexpr char kFolder[] = "tests/golden/testdata/tokenizer_gemma";

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string File(const std::string& name, const std::string& text) {
  std::ofstream(Path(name), std::ios::binary) << text;
  return Path(name);
}

TokenizeOptions Options(const std::vector<std::string>& inputs) {
  TokenizeOptions options;
  options.tokenizer = std::filesystem::absolute(kFolder);
  options.inputs = inputs;
  options.output = Path("made");
  options.threads = 2;
  std::filesystem::remove(Path("made.tokens"));
  return options;
}

// The documents of made.tokens.
std::vector<Ids> Documents() {
  auto mapped = MappedFile::Open(Path("made.tokens"));
  EXPECT_TRUE(mapped.ok()) << mapped.status();
  if (!mapped.ok()) return {};
  const auto file = text::TokenFile::Open(*std::move(mapped));
  EXPECT_TRUE(file.ok()) << file.status();
  if (!file.ok()) return {};
  std::vector<Ids> documents;
  for (int64_t i = 0; i < (*file)->documents(); ++i) {
    const int64_t begin = (*file)->DocumentBegin(i);
    documents.emplace_back((*file)->DocumentBegin(i + 1) - begin);
    EXPECT_TRUE(
        (*file)
            ->Read(begin, documents.back().size(), documents.back().data())
            .ok());
  }
  return documents;
}

std::string Error(const TokenizeOptions& options) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(TokenizeCommand(options), 1);
  EXPECT_FALSE(std::filesystem::exists(Path("made.tokens")));
  return testing::internal::GetCapturedStderr();
}

TEST(TokenizeCommandTest, TextsAndRowsAreDocuments) {
  const auto tokenizer = LoadTokenizer(kFolder);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text;
  while (text.size() < 3 << 20) text += "A line of words, and more.\n";
  TokenizeOptions options = Options(
      {File("a.txt", text), File("b.jsonl",
                                 "{\"text\": \"one\\u00e9\"}\n\n  \r\n"
                                 "{\"id\": 18446744073709551616, \"text\": "
                                 "\"\"}\r\n{\"text\": \"two\"}")});
  ASSERT_EQ(TokenizeCommand(options), 0);
  EXPECT_EQ(Documents(),
            std::vector<Ids>({(*tokenizer)->Encode(text),
                              (*tokenizer)->Encode("one\u00e9"), Ids(),
                              (*tokenizer)->Encode("two")}));

  options.add_ends = true;
  options.threads = 1;
  ASSERT_EQ(TokenizeCommand(options), 0);
  Ids whole = (*tokenizer)->Encode(text);
  (*tokenizer)->AddEnds(&whole);
  const std::vector<Ids> documents = Documents();
  ASSERT_EQ(documents.size(), 4u);
  EXPECT_EQ(documents[0], whole);
  EXPECT_EQ(documents[2], Ids({*(*tokenizer)->IdOf("<bos>")}));
}

TEST(TokenizeCommandTest, ErrorsNameFileAndLine) {
  EXPECT_THAT(Error(Options({File("x.jsonl", "{\"text\": \"a\"}\n\n{\"b\"")})),
              HasSubstr("x.jsonl:3: isn't valid JSON"));
  EXPECT_THAT(Error(Options({File("y.jsonl", "{\"text\": 1}")})),
              HasSubstr("y.jsonl:1: has no string \"text\""));
  EXPECT_THAT(Error(Options({File("z.jsonl", "3")})),
              HasSubstr("z.jsonl:1: has no string \"text\""));
  EXPECT_THAT(Error(Options({Path("missing.txt")})), HasSubstr("missing.txt"));
  TokenizeOptions options = Options({File("a.txt", "a")});
  options.tokenizer = Path("nowhere");
  EXPECT_THAT(Error(options), HasSubstr("nowhere/tokenizer.json"));
  options = Options({File("a.txt", "a")});
  options.threads = -1;
  EXPECT_THAT(Error(options), HasSubstr("--threads"));
}

}  // namespace
}  // namespace capstan
