// SPDX-License-Identifier: Apache-2.0
#include "trainer/session/receipts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_code.h"
#include "base/files.h"
#include "base/json.h"
#include "trainer/session/receipt_chain.h"

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Line = ReceiptChain::Line;

Line Begin(int64_t step, const std::string& strategy,
           const std::string& data = "a") {
  return {{"begin", step},
          {"run", {{"train_data", data}}},
          {"how", {{"strategy", strategy}}},
          {"weights", absl::StrCat("w", step)}};
}

Line Step(int64_t step, const std::string& loss = "1") {
  return {{"step", step},
          {"rows", absl::StrCat("r", step)},
          {"loss", loss},
          {"weights", absl::StrCat("w", step)}};
}

std::string ChainOf(std::vector<Line> lines) {
  ReceiptChain chain;
  for (Line& line : lines) {
    const absl::Status added = chain.Add(&line);
    EXPECT_TRUE(added.ok()) << added;
  }
  return chain.chain();
}

TEST(ReceiptChainTest, SaysWhatWasTrainedAndNotHow) {
  const std::string plain =
      ChainOf({Begin(0, "ddp"), Step(1), Step(2), Step(3)});
  EXPECT_EQ(plain.size(), 64u);
  EXPECT_EQ(ChainOf({Begin(0, "fsdp"), Step(1), Step(2), Step(3)}), plain);
  // Killed after step 3, gone on after step 1.
  EXPECT_EQ(ChainOf({Begin(0, "ddp"), Step(1), Step(2), Step(3),
                     Begin(1, "zero2"), Step(2), Step(3)}),
            plain);
  for (const std::vector<Line>& other :
       {std::vector<Line>{Begin(0, "ddp"), Step(1, "2"), Step(2), Step(3)},
        {Begin(0, "ddp"), Step(1), Step(2), Step(3, "2")},
        {Begin(0, "ddp", "b"), Step(1), Step(2), Step(3)},
        {Begin(0, "ddp"), Step(1), Begin(1, "ddp", "b"), Step(2), Step(3)},
        {Begin(0, "ddp"), Step(1), Step(2)}}) {
    EXPECT_NE(ChainOf(other), plain);
  }
  // Weights that something else than an update has replaced.
  const Line replaced = {{"begin", 1}, {"why", "back"}, {"weights", "other"}};
  EXPECT_NE(ChainOf({Begin(0, "ddp"), Step(1), replaced, Step(2), Step(3)}),
            plain);
  Line same = replaced;
  same["weights"] = "w1";
  same["run"] = {{"train_data", "a"}};
  EXPECT_EQ(ChainOf({Begin(0, "ddp"), Step(1), same, Step(2), Step(3)}), plain);
  // Another length of the run is no part of a step.
  Line longer = Step(2);
  longer["how"] = {{"schedule_steps", 9}};
  EXPECT_EQ(ChainOf({Begin(0, "ddp"), Step(1), longer, Step(3)}), plain);
  ReceiptChain chain;
  Line begin = Begin(4, "ddp");
  ASSERT_TRUE(chain.Add(&begin).ok());
  Line later = Step(6);
  EXPECT_TRUE(absl::IsFailedPrecondition(chain.Add(&later)));
}

class ReceiptsFileTest : public ::testing::Test {
 protected:
  ReceiptsFileTest() {
    for (Line line : {Begin(0, "ddp"), Step(1), Step(2), Begin(1, "ddp"),
                      Step(2), Step(3)}) {
      EXPECT_TRUE(chain_.Add(&line).ok());
      lines_.push_back(JsonText(line));
    }
  }
  absl::StatusOr<Receipts> Read(const std::vector<std::string>& lines) {
    std::ofstream file(folder_ + "/receipts.jsonl");
    for (const std::string& line : lines) file << line << "\n";
    file.close();
    return ReadReceipts(folder_);
  }

  const std::string folder_ = ::testing::TempDir();
  ReceiptChain chain_;
  std::vector<std::string> lines_;
};

TEST_F(ReceiptsFileTest, WhatWasWrittenHolds) {
  const auto read = Read(lines_);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->lines.size(), 6u);
  EXPECT_EQ(read->chain.chain(), chain_.chain());
  EXPECT_EQ(read->chain.seal(), chain_.seal());
  ASSERT_NE(read->chain.Find(2), nullptr);
  EXPECT_EQ(read->chain.Find(2)->weights, "w2");
  EXPECT_EQ(read->chain.Find(4), nullptr);
  // What a killed process leaves.
  std::vector<std::string> torn = lines_;
  torn.insert(torn.begin() + 3, lines_[3].substr(0, 40));
  const auto again = Read(torn);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->chain.chain(), chain_.chain());
  EXPECT_THAT(read->half_lines, IsEmpty());
  EXPECT_THAT(again->half_lines, ElementsAre(4));
  // Or one that still writes.
  Read(lines_).IgnoreError();
  std::ofstream(folder_ + "/receipts.jsonl", std::ios::app)
      << lines_[1].substr(0, 9);
  const auto growing = ReadReceipts(folder_);
  ASSERT_TRUE(growing.ok()) << growing.status();
  EXPECT_THAT(growing->half_lines, ElementsAre(7));
}

// Which the hashes, of what the line says, don't see.
TEST_F(ReceiptsFileTest, BytesThatTheRunDidNotWriteAreToldByLine) {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const std::string& line = lines_[i];
    const std::string key = line.substr(1, line.find(':') - 1);
    std::string escaped = line;
    escaped.replace(escaped.find("\"weights\""), 2, "\"\\u0077");
    for (const std::string& changed :
         {absl::StrCat("{", key, ":7,", line.substr(1)),
          absl::StrCat(line, "\r"), absl::StrCat(line, " "),
          absl::StrCat("{ ", line.substr(1)), escaped}) {
      ASSERT_EQ(ParseJson<Line>(changed), ParseJson<Line>(line)) << changed;
      std::vector<std::string> lines = lines_;
      lines[i] = changed;
      const absl::Status status = Read(lines).status();
      EXPECT_THAT(
          std::string(status.message()),
          AllOf(HasSubstr(absl::StrCat("receipts.jsonl: line ", i + 1, " (")),
                HasSubstr("its bytes aren't those of what it says")))
          << changed;
      EXPECT_EQ(CodeOf(status), "receipts/chain");
    }
  }
}

TEST_F(ReceiptsFileTest, WhatIsNoFileIsRefusedAtOnce) {
  const std::string path = folder_ + "/receipts.jsonl";
  RemoveTree(path).IgnoreError();
  for (const char* device : {"", "/dev/full", "/dev/zero", "/tmp"}) {
    if (*device == '\0') {
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    } else {
      ASSERT_EQ(symlink(device, path.c_str()), 0);
    }
    const absl::Status status = ReadReceipts(folder_).status();
    EXPECT_EQ(status.message(),
              absl::StrCat(path,
                           " isn't a file: put the file as the run wrote "
                           "it in its place"));
    EXPECT_EQ(CodeOf(status), "receipts/chain");
    ASSERT_EQ(unlink(path.c_str()), 0);
  }
}

// Any changed character, line left out, repeated or moved is told, with the
// first line that it concerns.
TEST_F(ReceiptsFileTest, WhatWasChangedIsToldByLine) {
  for (size_t i = 0; i < lines_.size(); ++i) {
    const Line line = ParseJson<Line>(lines_[i]);
    for (const auto& [key, value] : line.items()) {
      std::vector<std::string> lines = lines_;
      Line changed = line;
      if (value.is_string()) {
        std::string text = value.get<std::string>();
        text.back() = text.back() == '1' ? '2' : '1';
        changed[key] = text;
      } else if (value.is_object()) {
        changed[key]["more"] = 1;
      } else {
        changed[key] = value.get<int64_t>() + 7;
      }
      lines[i] = JsonText(changed);
      const auto read = Read(lines);
      ASSERT_FALSE(read.ok()) << key << " of line " << i + 1;
      EXPECT_THAT(std::string(read.status().message()),
                  HasSubstr(absl::StrCat("receipts.jsonl: line ", i + 1)))
          << key;
    }
    if (i + 1 == lines_.size()) break;
    std::vector<std::string> without = lines_;
    without.erase(without.begin() + i);
    EXPECT_THAT(std::string(Read(without).status().message()),
                HasSubstr(absl::StrCat("receipts.jsonl: line ", i + 1)));
    std::vector<std::string> moved = lines_;
    std::swap(moved[i], moved[i + 1]);
    EXPECT_FALSE(Read(moved).ok()) << i;
  }
  for (size_t i = 0; i < lines_.size(); ++i) {
    for (const std::string& other :
         {lines_[i].substr(1), std::string("null"), std::string("all is well"),
          std::string()}) {
      std::vector<std::string> garbled = lines_;
      garbled[i] = other;
      // Half of the line before a process's first is passed over.
      EXPECT_THAT(
          std::string(Read(garbled).status().message()),
          HasSubstr(i == 2 ? "line 4 (step 1) isn't as the run wrote it"
                           : absl::StrCat("line ", i + 1,
                                          " isn't as the run wrote it: it is "
                                          "no receipt")))
          << i << other;
      std::vector<std::string> more = lines_;
      more.insert(more.begin() + i + 1, other);
      // Only before a process's first line may there be half of one.
      EXPECT_EQ(Read(more).ok(), i == 2) << i << other;
    }
  }
  const auto step = Read({lines_[0], lines_[2]});
  EXPECT_THAT(std::string(step.status().message()),
              HasSubstr("line 2 (step 2) isn't as the run wrote it, or a line "
                        "before it isn't: it follows no line of step 1"));
}

Batch BatchOf(const std::vector<std::vector<int64_t>>& rows, int64_t length,
              int64_t first_position, bool counts) {
  const auto size = static_cast<int64_t>(rows.size());
  Batch batch;
  at::Tensor ids = at::zeros({size, length}, at::kLong);
  at::Tensor labels = at::full({size, length}, kIgnoredTarget, at::kLong);
  at::Tensor tokens = at::zeros({size}, at::kLong);
  for (int64_t r = 0; r < size; ++r) {
    tokens[r] = static_cast<int64_t>(rows[r].size());
    for (size_t t = 0; t < rows[r].size(); ++t) {
      ids[r][static_cast<int64_t>(t)] = rows[r][t];
      labels[r][static_cast<int64_t>(t)] = rows[r][t] + 1;
    }
  }
  batch[kInputIds] = ids;
  batch[kLabels] = labels;
  if (counts) batch[kTokenCounts] = tokens;
  batch[kSamplePosition] = at::arange(first_position, first_position + size);
  return batch;
}

TEST(DigestOfRowsTest, IsOfRowsHoweverTheyAreDividedAndPadded) {
  const std::vector<std::vector<int64_t>> rows = {
      {1, 2, 3}, {4, 5}, {6, 7, 8, 9}, {1, 2, 3}};
  const uint64_t whole = DigestOfRows(BatchOf(rows, 4, 10, true));
  EXPECT_EQ(DigestOfRows(BatchOf(rows, 8, 10, true)), whole);
  uint64_t sum = 0;
  for (size_t r = 0; r < rows.size(); ++r) {
    sum += DigestOfRows(BatchOf({rows[r]},
                                static_cast<int64_t>(rows[r].size()) + 1,
                                10 + static_cast<int64_t>(r), true));
  }
  EXPECT_EQ(sum, whole);
  // Without counts there is no padding.
  EXPECT_NE(DigestOfRows(BatchOf(rows, 8, 10, false)), whole);
  // One token more, other, or of another row.
  EXPECT_NE(DigestOfRows(BatchOf({{1, 2, 3}, {4, 5}, {6, 7, 8, 9}, {1, 2, 4}},
                                 4, 10, true)),
            whole);
  EXPECT_NE(DigestOfRows(BatchOf(
                {{1, 2, 3}, {4, 5, 0}, {6, 7, 8, 9}, {1, 2, 3}}, 4, 10, true)),
            whole);
  EXPECT_NE(DigestOfRows(BatchOf({{4, 5}, {1, 2, 3}, {6, 7, 8, 9}, {1, 2, 3}},
                                 4, 10, true)),
            whole);
  EXPECT_NE(DigestOfRows(BatchOf(rows, 4, 11, true)), whole);
}

TEST(DigestOfRowsTest, KnowsTheTextsOfAPairApart) {
  Batch pair = BatchOf({{1, 2}, {3, 4}}, 2, 5, true);
  pair[kSamplePosition] = at::arange(5, 6);
  Batch other = BatchOf({{3, 4}, {1, 2}}, 2, 5, true);
  other[kSamplePosition] = at::arange(5, 6);
  EXPECT_NE(DigestOfRows(pair), DigestOfRows(other));
  pair[HostCopyName(kInputIds)] = pair[kInputIds];
  Batch copied = pair;
  copied.erase(HostCopyName(kInputIds));
  EXPECT_EQ(DigestOfRows(pair), DigestOfRows(copied));
  // A row's text, which zeros follow.
  Batch text = pair;
  text[kRowText] = at::tensor({65, 66, 0, 0}, at::kByte).view({1, 4});
  Batch longer = pair;
  longer[kRowText] = at::tensor({65, 66, 0, 0, 0, 0}, at::kByte).view({1, 6});
  EXPECT_EQ(DigestOfRows(text), DigestOfRows(longer));
  EXPECT_NE(DigestOfRows(text), DigestOfRows(pair));
}

}  // namespace
}  // namespace capstan
