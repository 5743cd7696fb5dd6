// SPDX-License-Identifier: Apache-2.0
#include "datasets/stream/remote_shards.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <ctime>
#include <filesystem>
#include <fstream>

#include "base/files.h"
#include "datasets/stream/shard.h"
#include "datasets/stream/stream_testing.h"

namespace capstan::stream {
namespace {

namespace fs = std::filesystem;

std::string Bytes() {
  std::string bytes(300000, ' ');
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<char>('!' + i * 31 % 90);
  }
  return bytes;
}

// One object, of Bytes().
class FakeStore final : public RemoteStore {
 public:
  class Reader final : public RemoteReader {
   public:
    absl::Status Fetch(const std::vector<RemotePart>& parts) override {
      for (const RemotePart& part : parts) {
        std::fstream file(part.file,
                          std::ios::in | std::ios::out | std::ios::binary);
        file.seekp(part.offset);
        file.write(Bytes().data() + part.offset, part.bytes);
      }
      return absl::OkStatus();
    }
  };

  bool IsAddress(absl::string_view) const override { return true; }
  absl::StatusOr<RemoteFolder> List(const std::string& text) const override {
    RemoteFolder folder;
    folder.address = text;
    folder.objects.push_back(
        {"a.jsonl", static_cast<int64_t>(Bytes().size()), "1"});
    return folder;
  }
  absl::StatusOr<std::unique_ptr<RemoteReader>> Open(
      const std::string&) const override {
    return std::unique_ptr<RemoteReader>(std::make_unique<Reader>());
  }
  std::string LocalFolder() const override { return folder_; }
  int64_t LocalBytes() const override { return 1; }  // removes what it may

  void set_folder(const std::string& folder) { folder_ = folder; }

 private:
  std::string folder_;
};

class RemoteShardsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = TheRemoteStore();
    store_.set_folder(NewFolder());
    SetRemoteStore(&store_);
  }
  void TearDown() override { SetRemoteStore(before_); }

  void List() {
    auto remote = RemoteShards::List("s3://bucket");
    ASSERT_TRUE(remote.ok()) << remote.status();
    remote_ = *std::move(remote);
    auto shards = ListShards(remote_.get());
    ASSERT_TRUE(shards.ok()) << shards.status();
    shards_ = *std::move(shards);
  }

  static std::string ReadFrom(const ShardFile& file) {
    std::string bytes(Bytes().size(), ' ');
    const auto size = static_cast<int64_t>(bytes.size());
    EXPECT_TRUE(file.Read(0, size, &bytes[0]).ok());
    return bytes;
  }

  std::string Read() const {
    const auto file = ShardFile::Open(shards_[0]);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? ReadFrom(**file) : "";
  }

  FakeStore store_;
  const RemoteStore* before_ = nullptr;
  std::unique_ptr<RemoteShards> remote_;
  std::vector<Shard> shards_;
};

// What was there according to marks that outlived their file became zeros.
TEST_F(RemoteShardsTest, MarksOfACopyThatIsLostDontCount) {
  List();
  EXPECT_TRUE(Read() == Bytes());
  const std::string file = shards_[0].file;
  fs::remove(file);
  EXPECT_TRUE(Read() == Bytes());
  fs::resize_file(file, 1000);
  EXPECT_TRUE(Read() == Bytes());
  fs::resize_file(file + ".have", 1);
  EXPECT_TRUE(Read() == Bytes());
  fs::remove(file + ".have");
  EXPECT_TRUE(Read() == Bytes());
}

TEST_F(RemoteShardsTest, AFileThatIsOpenReadsACopyThatIsMadeAgain) {
  List();
  const auto file = ShardFile::Open(shards_[0]);
  ASSERT_TRUE(file.ok());
  EXPECT_TRUE(ReadFrom(**file) == Bytes());
  fs::remove(shards_[0].file);
  EXPECT_TRUE(ReadFrom(**file) == Bytes());
  EXPECT_TRUE(Read() == Bytes());
}

void MakeOld(const std::string& path) {
  timespec times[2] = {};
  times[0].tv_sec = times[1].tv_sec = time(nullptr) - 2 * 24 * 3600;
  ASSERT_EQ(utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
}

TEST_F(RemoteShardsTest, CopiesOfEarlierBootsAreRemovedWhenTheyAreOld) {
  const std::string old = store_.LocalFolder() + "/shards-12345678";
  const std::string used = store_.LocalFolder() + "/shards-abcdef01";
  const std::string other = store_.LocalFolder() + "/tokens";
  for (const std::string& folder : {old, used, other}) {
    fs::create_directory(folder);
    WriteFile(folder + "/copy", "bytes");
    if (folder != used) MakeOld(folder + "/copy");
    MakeOld(folder);
  }
  List();
  EXPECT_FALSE(PathExists(old));
  EXPECT_TRUE(PathExists(used));
  EXPECT_TRUE(PathExists(other));
  EXPECT_TRUE(Read() == Bytes());
}

}  // namespace
}  // namespace capstan::stream
