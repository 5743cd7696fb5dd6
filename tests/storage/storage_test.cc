// SPDX-License-Identifier: Apache-2.0
//
// Calls of object storage against servers that speak S3, GCS and Azure's
// protocol and are disturbed.
#include "host/storage/storage.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/digest.h"
#include "host/storage/azure_connection.h"
#include "host/storage/cache.h"
#include "tests/storage/store_server.h"
#include "tests/testing/run_folder.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// `bytes` that differ everywhere.
std::string Bytes(size_t bytes) {
  std::string text;
  text.reserve(bytes + 32);
  for (int i = 0; text.size() < bytes; ++i) {
    text += Sha256(absl::StrCat(i));
  }
  text.resize(bytes);
  return text;
}

class StorageTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!StoreServer::Available()) {
      GTEST_SKIP()
          << "no server could be fetched (third_party/store_servers.bzl)";
    }
    server_ = std::make_unique<StoreServer>(kind());
    folder_ = NewTestFolder("storage");
    for (const auto& [name, value] : server_->Environment(folder_)) {
      setenv(name.c_str(), value.c_str(), 1);
    }
    setenv("CAPSTAN_STORAGE_SECONDS", "20", 1);
  }

  virtual StoreKind kind() const { return StoreKind::kS3; }
  std::string Object(const std::string& key) const {
    return absl::StrCat(server_->Objects(), "/", key);
  }

  // Runs `body`, which returns what is wrong, in a process of its own, with the
  // storage of `folder` of the bucket.
  void Do(const std::function<absl::Status(const Storage&)>& body,
          const std::string& folder = "folder") const {
    const absl::StatusOr<std::string> done =
        InStorageProcess([&]() -> absl::StatusOr<std::string> {
          const auto parsed = ParseAddress(server_->address() + folder);
          if (!parsed.ok()) return parsed.status();
          const auto storage = Storage::Open(*parsed);
          if (!storage.ok()) return storage.status();
          const absl::Status status = body(**storage);
          if (!status.ok()) return status;
          return "";
        });
    EXPECT_TRUE(done.ok()) << done.status();
  }

  std::unique_ptr<StoreServer> server_;
  std::string folder_;
};

// What holds of every store.
class AnyStoreTest : public StorageTest,
                     public ::testing::WithParamInterface<StoreKind> {
 protected:
  StoreKind kind() const override { return GetParam(); }
  void Put(const std::string& key, const std::string& bytes) const {
    Do([&](const Storage& storage) { return storage.Write(key, bytes); }, "");
  }
  absl::StatusOr<std::string> Copy(const std::string& key) const {
    return LocalCopy(server_->address() + key);
  }
};
INSTANTIATE_TEST_SUITE_P(, AnyStoreTest,
                         ::testing::Values(StoreKind::kS3, StoreKind::kGcs,
                                           StoreKind::kAzure),
                         ::testing::PrintToStringParamName());

TEST_P(AnyStoreTest, WhatIsWrittenIsRead) {
  // The emulator of GCS takes seconds for ten MiB.
  const size_t mib = kind() == StoreKind::kS3 ? 40 : 10;
  const std::string large = Bytes((mib << 20) + 12345);
  const std::string file = WriteText(NewTestFolder("f") + "/large", large);
  const std::string back = NewTestFolder("back");
  Do([&](const Storage& storage) -> absl::Status {
    absl::Status status = storage.Upload(file, "large");
    status.Update(storage.Write("deep/down/small", "text"));
    status.Update(storage.Write("empty", ""));
    if (!status.ok()) return status;
    const auto objects = storage.List("");
    if (!objects.ok()) return objects.status();
    return storage.Download(*objects, back);
  });
  EXPECT_EQ(ReadText(Object("folder/large")), large);
  EXPECT_EQ(ReadText(back + "/large"), large);
  EXPECT_EQ(ReadText(back + "/deep/down/small"), "text");
  EXPECT_EQ(ReadText(back + "/empty"), "");
  Do([&](const Storage& storage) {
    absl::Status status = storage.Delete("deep/down/small");
    status.Update(storage.Delete("deep/down/small"));  // there is none
    return status;
  });
  EXPECT_FALSE(fs::exists(Object("folder/deep/down/small")));
}

class AzureStoreTest : public StorageTest {
 protected:
  StoreKind kind() const override { return StoreKind::kAzure; }
};

TEST_F(AzureStoreTest, AnotherKeyAndAMissingContainerAreRefusedAtOnce) {
  const absl::Status missing = LocalCopy("az://nowhere/x").status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kPermissionDenied) << missing;
  EXPECT_THAT(std::string(missing.message()), HasSubstr("ContainerNotFound"));
  std::string connection = std::getenv("AZURE_STORAGE_CONNECTION_STRING");
  const std::string key = ReadAzureConnection(connection).key;
  connection.replace(connection.find(key), 4, "AAAA");
  setenv("AZURE_STORAGE_CONNECTION_STRING", connection.c_str(), 1);
  const absl::Status refused = LocalCopy(server_->address() + "x").status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied) << refused;
  EXPECT_THAT(std::string(refused.message()), Not(HasSubstr(key.substr(4))));
}

// The emulator of GCS doesn't know how far an upload came that failed.
TEST_F(StorageTest, FaultsArePassedOver) {
  server_->proxy().set_faults({/*cut=*/0.2, /*busy=*/0.2, /*slow=*/0});
  const std::string text = Bytes(3 << 20);
  const std::string back = NewTestFolder("back");
  Do([&](const Storage& storage) -> absl::Status {
    for (int i = 0; i < 8; ++i) {
      const absl::Status status = storage.Write(absl::StrCat("o", i), text);
      if (!status.ok()) return status;
    }
    const auto objects = storage.List("");
    if (!objects.ok()) return objects.status();
    return storage.Download(*objects, back);
  });
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(ReadText(absl::StrCat(back, "/o", i)), text);
  }
  EXPECT_GT(server_->proxy().faults(), 5);
}

TEST_F(StorageTest, AServerThatIsGoneIsWaitedForAndThenTold) {
  server_->Kill();
  setenv("CAPSTAN_STORAGE_SECONDS", "1", 1);
  Do([&](const Storage& storage) -> absl::Status {
    const absl::Status status = storage.Write("a", "text");
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("s3://bucket/folder/a can't be written: "),
                      HasSubstr("(tried "),
                      HasSubstr("is the store up and reachable from here?")));
    return ::testing::Test::HasFailure() ? status : absl::OkStatus();
  });
}

TEST_F(StorageTest, SecretsAreInNoMessage) {
  setenv("AWS_SECRET_ACCESS_KEY", "anothersecret0123", 1);
  Do([&](const Storage& storage) -> absl::Status {
    const absl::Status status = storage.Write("a", "text");
    const std::string text(status.message());
    if (!absl::IsPermissionDenied(status) ||
        text.find("anothersecret0123") != std::string::npos ||
        text.find("AWS_PROFILE") == std::string::npos) {
      return absl::InternalError(status.ToString());
    }
    return absl::OkStatus();
  });
}

TEST_F(StorageTest, CredentialsComeFromAProfileToo) {
  auto environment = server_->Environment(folder_);
  const std::string home = NewTestFolder("home");
  fs::create_directories(home + "/.aws");
  WriteText(
      home + "/.aws/credentials",
      absl::StrCat(
          "[work]\naws_access_key_id = ", environment["AWS_ACCESS_KEY_ID"],
          "\naws_secret_access_key = ", environment["AWS_SECRET_ACCESS_KEY"],
          "\n"));
  unsetenv("AWS_ACCESS_KEY_ID");
  unsetenv("AWS_SECRET_ACCESS_KEY");
  setenv("HOME", home.c_str(), 1);
  setenv("AWS_PROFILE", "work", 1);
  Do([](const Storage& storage) { return storage.Write("a", "text"); });
  unsetenv("AWS_PROFILE");
  EXPECT_EQ(ReadText(Object("folder/a")), "text");
}

// --- The cache.

TEST_P(AnyStoreTest, ACopyIsMadeOnceAndAnewWhenTheObjectChanges) {
  Put("data.jsonl", "one\n");
  const auto first = Copy("data.jsonl");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ReadText(*first), "one\n");
  EXPECT_EQ(fs::path(*first).filename(), "data.jsonl");
  const auto again = Copy("data.jsonl");
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(*again, *first);
  Put("data.jsonl", "two\n");
  const auto changed = Copy("data.jsonl");
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(ReadText(*changed), "two\n");
  // Who reads the first goes on with it.
  EXPECT_EQ(ReadText(*first), "one\n");
}

TEST_P(AnyStoreTest, FoldersAndPatterns) {
  Put("d/a.txt", "a");
  Put("d/b.txt", "b");
  Put("d/e/c.bin", "c");
  const auto folder = Copy("d/");
  ASSERT_TRUE(folder.ok()) << folder.status();
  EXPECT_EQ(ReadText(*folder + "/a.txt"), "a");
  EXPECT_EQ(ReadText(*folder + "/e/c.bin"), "c");
  const auto pattern = Copy("d/*.txt");
  ASSERT_TRUE(pattern.ok()) << pattern.status();
  EXPECT_EQ(fs::path(*pattern).filename(), "*.txt");
  std::vector<std::string> names;
  for (const auto& entry :
       fs::directory_iterator(fs::path(*pattern).parent_path())) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ElementsAre("a.txt", "b.txt"));
  EXPECT_TRUE(absl::IsNotFound(Copy("none").status()));
  EXPECT_TRUE(absl::IsNotFound(Copy("d/*.csv").status()));
}

TEST_F(StorageTest, TheCacheKeepsItsSizeAndWhatIsRead) {
  setenv("CAPSTAN_STORAGE_CACHE_GIB", "0.0025", 1);  // 2.6 MiB
  for (const char* name : {"a", "b", "c"}) {
    server_->Put(name, Bytes(1 << 20));
  }
  const auto read = [](const std::string& name) {
    const auto path = LocalCopy("s3://bucket/" + name);
    EXPECT_TRUE(path.ok()) << path.status();
    return path.value_or("");
  };
  // Read by a process that has ended: it may go.
  if (const pid_t child = fork(); child == 0) {
    _exit(read("a").empty());
  } else {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_EQ(status, 0);
  }
  const std::string b = read("b");
  const std::string c = read("c");
  EXPECT_TRUE(fs::exists(b));
  EXPECT_TRUE(fs::exists(c));
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(folder_ + "/cache")) {
    entries += entry.is_directory();
  }
  EXPECT_EQ(entries, 2) << "the first is gone";
  // Both are read by this process.
  const absl::Status full = LocalCopy("s3://bucket/a").status();
  EXPECT_THAT(std::string(full.message()),
              AllOf(HasSubstr("s3://bucket/a has "),
                    HasSubstr("set CAPSTAN_STORAGE_CACHE_GIB to more")));
  unsetenv("CAPSTAN_STORAGE_CACHE_GIB");
}

TEST_F(StorageTest, ProcessesThatAskAtOnceShareOneDownload) {
  server_->Put("shared", Bytes(4 << 20));
  std::atomic<int> reads{0};
  server_->proxy().set_filter([&reads](const std::string& line) {
    reads += line.rfind("GET /bucket/shared", 0) == 0;
    return true;
  });
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(fork());
    if (children.back() == 0) {
      const auto path = LocalCopy("s3://bucket/shared");
      _exit(path.ok() && fs::file_size(*path) == 4 << 20 ? 0 : 1);
    }
  }
  for (const pid_t child : children) {
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(reads, 1);
}

TEST(AddressTest, PartsAndErrors) {
  const auto address = ParseAddress("gs://my-bucket/a/b c/");
  ASSERT_TRUE(address.ok());
  EXPECT_EQ(address->scheme, "gs");
  EXPECT_EQ(address->bucket, "my-bucket");
  EXPECT_EQ(address->key, "a/b c");
  EXPECT_EQ(address->text(), "gs://my-bucket/a/b c");
  EXPECT_EQ(ParseAddress("az://container")->key, "");
  EXPECT_FALSE(IsAddress("http://a/b"));
  EXPECT_FALSE(IsAddress("s3:/a"));
  for (const char* wrong : {"s3://", "s3://a b/c", "s3://a//b", "s3://a/../b",
                            "s3://id:secret@a/b", "ftp://a/b"}) {
    const absl::Status status = ParseAddress(wrong).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << wrong;
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("secret@")));
  }
  EXPECT_EQ(LocalCopy("file:///tmp/x").value_or(""), "/tmp/x");
  EXPECT_EQ(LocalCopy("relative/x").value_or(""), "relative/x");
}

TEST(AddressTest, LocalFoldersAreOfOneAddressOfOneStore) {
  const Address outer = *ParseAddress("s3://b/exp");
  const Address inner = *ParseAddress("s3://b/exp/second");
  const std::string folder = WorkingFolder(outer);
  EXPECT_THAT(folder, HasSubstr("/runs/s3-b-exp-"));
  EXPECT_EQ(fs::path(folder).parent_path(),
            fs::path(WorkingFolder(inner)).parent_path());
  EXPECT_NE(WorkingFolder(*ParseAddress("s3://b/a/b")),
            WorkingFolder(*ParseAddress("s3://b/a-b")));
  const char* const before = getenv("AWS_ENDPOINT_URL");
  const std::string endpoint = before == nullptr ? "" : before;
  setenv("AWS_ENDPOINT_URL", "http://another", 1);
  EXPECT_NE(WorkingFolder(outer), folder);
  setenv("AWS_ENDPOINT_URL", endpoint.c_str(), 1);
  EXPECT_TRUE(IsOfRun("checkpoints/step-00000001/manifest.json"));
  EXPECT_TRUE(IsOfRun("metrics.jsonl"));
  EXPECT_FALSE(IsOfRun("second/metrics.jsonl"));
  EXPECT_FALSE(IsOfRun(".capstan-owner"));
}

TEST(AddressTest, SignaturesAreCutFromMessages) {
  EXPECT_EQ(WithoutSecrets("GET https://a.net/b?sv=1&sig=abc%3D failed: 403"),
            "GET https://a.net/b?*** failed: 403");
  setenv("AZURE_STORAGE_CONNECTION_STRING",
         "AccountName=me;AccountKey=aGVsbG8=;EndpointSuffix=b.net", 1);
  EXPECT_EQ(WithoutSecrets("me can't sign with aGVsbG8="),
            "me can't sign with ***");
  unsetenv("AZURE_STORAGE_CONNECTION_STRING");
  EXPECT_EQ(WithoutSecrets("query se=1&sig=abc&sp=r is wrong"),
            "query se=1&sig=***&sp=r is wrong");
}

// No bucket is needed to see that the libraries of other clouds are there.
TEST(AddressTest, OtherCloudsSayWhatTheyLack) {
  unsetenv("AZURE_STORAGE_ACCOUNT");
  unsetenv("AZURE_STORAGE_CONNECTION_STRING");
  const absl::Status azure = LocalCopy("az://container/x").status();
  EXPECT_THAT(std::string(azure.message()),
              HasSubstr("neither AZURE_STORAGE_ACCOUNT nor"));
}

TEST(RecordsOfRunsTest, AreOfEachRunWithoutWhatItHasMade) {
  std::vector<StoredObject> objects;
  for (const char* path :
       {"a/config.pbtxt", "a/metrics.jsonl", "a/ranks/rank-00000.jsonl",
        "a/ranks/.0.part", "a/checkpoints/step-00000002/config.pbtxt",
        "a/checkpoints/step-00000002/manifest.json", "a/final/config.pbtxt",
        "a/final/model.safetensors", "a/.capstan-owner", "a/b/config.pbtxt",
        "a/b/metrics.jsonl", "final/c/config.pbtxt", "notes.txt"}) {
    objects.push_back({path, 1});
  }
  std::vector<std::string> paths;
  for (const StoredObject& object : RecordsOfRuns(objects)) {
    paths.push_back(object.path);
  }
  EXPECT_THAT(paths, ::testing::UnorderedElementsAre(
                         "a/config.pbtxt", "a/metrics.jsonl",
                         "a/ranks/rank-00000.jsonl", "a/.capstan-owner",
                         "a/b/config.pbtxt", "a/b/metrics.jsonl",
                         "final/c/config.pbtxt"));
  // One run, by its own address.
  objects = {{"config.pbtxt", 1}, {"final/model.safetensors", 1}};
  EXPECT_EQ(RecordsOfRuns(objects).size(), 1u);
  EXPECT_TRUE(RecordsOfRuns({{"notes.txt", 1}}).empty());
}

TEST(AzureConnectionTest, IsAnAccountsKeyOrASignature) {
  AzureConnection of = ReadAzureConnection(
      "DefaultEndpointsProtocol=https;accountname=me;AccountKey=a=b==;"
      "EndpointSuffix=core.windows.net");
  EXPECT_EQ(of.account, "me");
  EXPECT_EQ(of.key, "a=b==");
  EXPECT_EQ(of.suffix, "core.windows.net");
  EXPECT_EQ(of.blob_endpoint, "");
  of = ReadAzureConnection(
      "BlobEndpoint=https://me.blob.core.windows.net/;"
      "SharedAccessSignature=sv=1&sig=x%3D");
  EXPECT_EQ(of.account, "me");
  EXPECT_EQ(of.signature, "sv=1&sig=x%3D");
  EXPECT_EQ(of.blob_endpoint, "https://me.blob.core.windows.net");
  of = ReadAzureConnection("BlobEndpoint=http://127.0.0.1:10000/devstore");
  EXPECT_EQ(of.account, "devstore");
  EXPECT_EQ(ReadAzureConnection("BlobEndpoint=x").account, "x");
  EXPECT_EQ(ReadAzureConnection("").account, "");
}

TEST(AzureConnectionTest, WhatIsWrongIsToldWithoutTheKey) {
  const auto wrong = [](const std::string& text) {
    return WrongInAzureConnection(ReadAzureConnection(text));
  };
  const std::string key = "AccountKey=YWJjZGVm";
  EXPECT_EQ(wrong("AccountName=me;" + key), "");
  EXPECT_EQ(wrong("AccountName=me;BlobEndpoint=http://127.0.0.1:1/me;" + key),
            "");
  for (const std::string& text :
       {"AccountName=me " + key, "AccountName=me," + key,
        "AccountName=me;EndpointSuffix=x.net," + key,
        std::string("AccountName=me;AccountKey=not*base64"),
        std::string("AccountName=me;AccountKey=YWJjZ"),
        "AccountName=me;BlobEndpoint=http://127.0.0.1:abc/me;" + key,
        "AccountName=me;BlobEndpoint=http://127.0.0.1:99999/me;" + key,
        "AccountName=me;BlobEndpoint=http://u:p@127.0.0.1/me;" + key,
        "AccountName=me;BlobEndpoint=ftp://me;" + key}) {
    EXPECT_NE(wrong(text), "") << text;
    EXPECT_THAT(wrong(text), Not(HasSubstr("YWJj"))) << text;
  }
}

}  // namespace
}  // namespace capstan
