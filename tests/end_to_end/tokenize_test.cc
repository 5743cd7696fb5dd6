// SPDX-License-Identifier: Apache-2.0
//
// `trainer tokenize`.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "plugins/sdk/tokenizer.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"
#include "text/tokens/token_file.h"

namespace capstan {
namespace {

using Ids = std::vector<int64_t>;

std::string Folder() {
  return Runfile("tests/golden/testdata/tokenizer_gemma");
}

std::string Path(const std::string& name) {
  return ::testing::TempDir() + "/" + name;
}

std::string File(const std::string& name, const std::string& text) {
  return WriteText(Path(name), text);
}

TrainerResult Tokenize(const std::vector<std::string>& inputs,
                       const std::vector<std::string>& more = {},
                       const std::string& folder = Folder()) {
  std::filesystem::remove(Path("made.tokens"));
  std::vector<std::string> args = {"tokenize", "--tokenizer=" + folder,
                                   "--output=" + Path("made")};
  for (const std::string& input : inputs) args.push_back("--input=" + input);
  args.insert(args.end(), more.begin(), more.end());
  return RunTrainer(args);
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

TEST(TokenizeTest, TextsAndRowsAreDocuments) {
  const auto tokenizer = LoadTokenizer(Folder());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text;
  while (text.size() < 3 << 20) text += "A line of words, and more.\n";
  const std::vector<std::string> inputs = {
      File("a.txt", text), File("b.jsonl",
                                "{\"text\": \"one\\u00e9\"}\n\n  \r\n"
                                "{\"id\": 18446744073709551616, \"text\": "
                                "\"\"}\r\n{\"text\": \"two\"}")};
  TrainerResult result = Tokenize(inputs, {"--threads=2"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  // The summary alone: there is no terminal.
  EXPECT_THAT(result.out, ::testing::MatchesRegex(
                              ".*made.tokens: [0-9,]* tokens, 4 documents, of "
                              "3.* in .* s \\(.* MB/s\\)\n"));
  EXPECT_EQ(Documents(),
            std::vector<Ids>({(*tokenizer)->Encode(text),
                              (*tokenizer)->Encode("one\u00e9"), Ids(),
                              (*tokenizer)->Encode("two")}));

  result = Tokenize(inputs, {"--threads=1", "--add_ends"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  Ids whole = (*tokenizer)->Encode(text);
  (*tokenizer)->AddEnds(&whole);
  const std::vector<Ids> documents = Documents();
  ASSERT_EQ(documents.size(), 4u);
  EXPECT_EQ(documents[0], whole);
  EXPECT_EQ(documents[2], Ids({*(*tokenizer)->IdOf("<bos>")}));
}

TEST(TokenizeTest, ErrorsNameFileAndLine) {
  const auto expect = [](const TrainerResult& result,
                         const std::string& words) {
    ExpectOneError(result, {words});
    EXPECT_FALSE(std::filesystem::exists(Path("made.tokens")));
  };
  expect(Tokenize({File("x.jsonl", "{\"text\": \"a\"}\n\n{\"b\"")}),
         "x.jsonl:3: isn't valid JSON");
  expect(Tokenize({File("y.jsonl", "{\"text\": 1}")}),
         "y.jsonl:1: has no string \"text\"");
  expect(Tokenize({File("z.jsonl", "3")}), "z.jsonl:1: has no string \"text\"");
  expect(Tokenize({Path("missing.txt")}), "missing.txt");
  const std::string a = File("a.txt", "a");
  expect(Tokenize({a}, {}, Path("nowhere")), "nowhere/tokenizer.json");
  expect(Tokenize({a}, {"--threads=-1"}),
         "must be at least 1, or 0 for one a core");
}

}  // namespace
}  // namespace capstan
