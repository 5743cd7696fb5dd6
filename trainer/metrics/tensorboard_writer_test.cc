// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/tensorboard_writer.h"

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "trainer/metrics/tensorboard_event.pb.h"

namespace capstan {
namespace {

// CRC-32C bit by bit (polynomial 0x1edc6f41 reflected), to check the writer's
// against.
uint32_t SlowCrc32c(const std::string& bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc ^= static_cast<uint8_t>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return ~crc;
}

uint32_t SlowMaskedCrc(const std::string& bytes) {
  const uint32_t crc = SlowCrc32c(bytes);
  return (crc >> 15 | crc << 17) + 0xa282ead8;
}

uint64_t TakeLittleEndian(int bytes, std::string* rest) {
  uint64_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) {
    value = value << 8 | static_cast<uint8_t>(rest->at(i));
  }
  rest->erase(0, bytes);
  return value;
}

std::vector<std::string> ParseRecords(std::string rest) {
  std::vector<std::string> records;
  while (!rest.empty()) {
    const std::string length_bytes = rest.substr(0, 8);
    const uint64_t length = TakeLittleEndian(8, &rest);
    EXPECT_EQ(TakeLittleEndian(4, &rest), SlowMaskedCrc(length_bytes));
    records.push_back(rest.substr(0, length));
    rest.erase(0, length);
    EXPECT_EQ(TakeLittleEndian(4, &rest), SlowMaskedCrc(records.back()));
  }
  return records;
}

class TensorBoardWriterTest : public testing::Test {
 protected:
  TensorBoardWriterTest()
      : folder_(testing::TempDir() + "/" +
                testing::UnitTest::GetInstance()->current_test_info()->name()) {
    std::filesystem::remove_all(folder_);
  }

  std::vector<tensorboard::Event> ReadEvents() {
    std::vector<tensorboard::Event> events;
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      EXPECT_EQ(
          entry.path().filename().string().rfind("events.out.tfevents.", 0), 0)
          << entry.path();
      std::ostringstream text;
      text << std::ifstream(entry.path(), std::ios::binary).rdbuf();
      for (const std::string& record : ParseRecords(text.str())) {
        EXPECT_TRUE(events.emplace_back().ParseFromString(record));
      }
    }
    return events;
  }

  const std::string folder_;
};

TEST(TfRecord, Framing) {
  // The check value that every CRC-32C has (RFC 3720's polynomial).
  ASSERT_EQ(SlowCrc32c("123456789"), 0xe3069283u);
  std::string records;
  AppendTfRecord("123456789", &records);
  AppendTfRecord("", &records);
  EXPECT_EQ(records.size(), 16 + 9 + 16);
  EXPECT_EQ(records.substr(0, 8), std::string("\x09\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(ParseRecords(records), (std::vector<std::string>{"123456789", ""}));
}

TEST_F(TensorBoardWriterTest, Settings) {
  auto writer = TensorBoardWriter::Open(folder_, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(
      (*writer)->HParams({{"rate", "2e-05"}, {"strategy", "ddp"}}).ok());
  ASSERT_TRUE((*writer)->Flush().ok());
  const std::vector<tensorboard::Event> events = ReadEvents();
  ASSERT_EQ(events.size(), 2);
  const tensorboard::Summary::Value& value = events[1].summary().value(0);
  EXPECT_EQ(value.tag(), "_hparams_/session_start_info");
  EXPECT_EQ(value.metadata().plugin_data().plugin_name(), "hparams");
  tensorboard::HParamsPluginData data;
  ASSERT_TRUE(data.ParseFromString(value.metadata().plugin_data().content()));
  const auto& hparams = data.session_start_info().hparams();
  EXPECT_EQ(hparams.at("rate").number_value(), 2e-5);
  EXPECT_EQ(hparams.at("strategy").string_value(), "ddp");
}

TEST_F(TensorBoardWriterTest, ScalarsAndTexts) {
  absl::StatusOr<std::unique_ptr<TensorBoardWriter>> writer =
      TensorBoardWriter::Open(folder_ + "/deep", 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  writer = TensorBoardWriter::Open(folder_, 0);
  ASSERT_TRUE(writer.ok()) << writer.status();
  std::filesystem::remove_all(folder_ + "/deep");
  StepMetrics metrics;
  metrics.step = 3;
  metrics.loss = 2.5;
  metrics.lr = 0.25;
  metrics.grad_norm = 1.5;
  metrics.tokens_per_second = 4096.0;
  metrics.tagged = {{"train/acc_action", 0.5}};
  ASSERT_TRUE((*writer)->Step(metrics).ok());
  ASSERT_TRUE((*writer)->Scalars(4, {{"eval/loss", 1.25}}).ok());
  ASSERT_TRUE((*writer)->Text(4, "words").ok());
  ASSERT_TRUE((*writer)->Flush().ok());

  const std::vector<tensorboard::Event> events = ReadEvents();
  ASSERT_EQ(events.size(), 4);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_GT(events[0].wall_time(), 1.6e9);
  EXPECT_EQ(events[1].step(), 3);
  ASSERT_EQ(events[1].summary().value_size(), 5);
  const auto expect_scalar = [&](const tensorboard::Summary::Value& value,
                                 const char* tag, float expected) {
    EXPECT_EQ(value.tag(), tag);
    EXPECT_EQ(value.simple_value(), expected);
  };
  expect_scalar(events[1].summary().value(0), "train/loss", 2.5f);
  expect_scalar(events[1].summary().value(1), "train/lr", 0.25f);
  expect_scalar(events[1].summary().value(2), "train/grad_norm", 1.5f);
  expect_scalar(events[1].summary().value(3), "train/tokens_per_second",
                4096.0f);
  expect_scalar(events[1].summary().value(4), "train/acc_action", 0.5f);
  expect_scalar(events[2].summary().value(0), "eval/loss", 1.25f);
  const tensorboard::Summary::Value& text = events[3].summary().value(0);
  EXPECT_EQ(text.metadata().plugin_data().plugin_name(), "text");
  EXPECT_EQ(text.tensor().dtype(), 7);
  EXPECT_EQ(text.tensor().string_val(0), "words");
}

TEST_F(TensorBoardWriterTest, AHistogramIsOneTag) {
  absl::StatusOr<std::unique_ptr<TensorBoardWriter>> writer =
      TensorBoardWriter::Open(folder_, 0, "samples");
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(
      (*writer)->Histogram(7, "eval/return", {1.0, NAN, 4.0, 4.0}).ok());
  ASSERT_TRUE((*writer)->Histogram(8, "eval/return", {2.5, 2.5}).ok());
  ASSERT_TRUE((*writer)->Histogram(9, "eval/return", {NAN}).ok());
  ASSERT_TRUE((*writer)->Step(StepMetrics()).ok());
  ASSERT_TRUE((*writer)->Flush().ok());
  const std::vector<tensorboard::Event> events = ReadEvents();
  ASSERT_EQ(events.size(), 4) << "of the three histograms one has no value";
  EXPECT_EQ(events[1].step(), 7);
  EXPECT_EQ(events[1].summary().value(0).tag(), "eval/return");
  const tensorboard::Histogram& histogram =
      events[1].summary().value(0).histo();
  EXPECT_EQ(histogram.min(), 1.0);
  EXPECT_EQ(histogram.max(), 4.0);
  EXPECT_EQ(histogram.num(), 3.0);
  EXPECT_EQ(histogram.sum(), 9.0);
  EXPECT_EQ(histogram.sum_squares(), 33.0);
  ASSERT_EQ(histogram.bucket_size(), histogram.bucket_limit_size());
  EXPECT_EQ(histogram.bucket(0), 1.0);
  EXPECT_EQ(histogram.bucket(histogram.bucket_size() - 1), 2.0);
  EXPECT_EQ(histogram.bucket_limit(histogram.bucket_size() - 1), 4.0);
  const tensorboard::Histogram& alike = events[2].summary().value(0).histo();
  ASSERT_EQ(alike.bucket_size(), 1);
  EXPECT_EQ(alike.bucket(0), 2.0);
  EXPECT_EQ(alike.bucket_limit(0), 2.5);
  EXPECT_EQ(events[3].summary().value(3).tag(), "train/samples_per_second");
}

TEST_F(TensorBoardWriterTest, AResumedRunSupersedesLaterSteps) {
  ASSERT_TRUE(TensorBoardWriter::Open(folder_, 100).ok());
  const std::vector<tensorboard::Event> events = ReadEvents();
  ASSERT_EQ(events.size(), 2);
  EXPECT_EQ(events[1].step(), 101);
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
}

TEST_F(TensorBoardWriterTest, AFolderThatCannotBeMade) {
  std::ofstream(folder_) << "a file";
  const auto writer = TensorBoardWriter::Open(folder_, 0);
  ASSERT_FALSE(writer.ok());
  EXPECT_NE(writer.status().message().find(folder_), std::string::npos)
      << writer.status();
}

}  // namespace
}  // namespace capstan
