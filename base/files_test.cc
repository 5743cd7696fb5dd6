// SPDX-License-Identifier: Apache-2.0
#include "base/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/scratch_folder.h"
#include "base/status.h"

namespace capstan {
namespace {

using ::testing::HasSubstr;

std::string NewFolder() {
  std::string path = ::testing::TempDir() + "/files_XXXXXX";
  EXPECT_NE(mkdtemp(&path[0]), nullptr);
  return path;
}

TEST(FilesTest, CrcIsTheStandardOne) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(""), 0u);
  // RFC 3720, B.4: 32 bytes of zeros.
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
}

TEST(FilesTest, ReadsInPlaces) {
  std::string bytes((4 << 20) + 12345, 'a');  // more than one piece
  bytes[4 << 20] = 'b';
  const std::string path = NewFolder() + "/large";
  ASSERT_TRUE(WriteWholeFile(path, bytes).ok());
  EXPECT_EQ(*ReadWholeFile(path), bytes);
  const auto file = InputFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->Bytes().value(), bytes.size());
  std::string read(100, '.');
  ASSERT_TRUE((*file)->ReadAt((4 << 20) - 50, 100, &read[0]).ok());
  EXPECT_EQ(read, bytes.substr((4 << 20) - 50, 100));
  const absl::Status status = (*file)->ReadAt(bytes.size() - 99, 100, &read[0]);
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(std::string(status.message()), HasSubstr(path + ": ends at"));
}

std::string Message(const absl::Status& status) {
  return std::string(status.message());
}

TEST(FilesTest, MissingFilesAreNamed) {
  const std::string path = NewFolder() + "/none/x";
  const std::string none = ": No such file or directory";
  for (const absl::Status& status :
       {ReadWholeFile(path).status(), InputFile::Open(path).status(),
        SyncPath(path)}) {
    EXPECT_TRUE(absl::IsNotFound(status));
    EXPECT_EQ(Message(status), path + none);
  }
  const absl::Status mapped = MappedFile::Open(path).status();
  EXPECT_TRUE(absl::IsNotFound(mapped));
  EXPECT_EQ(Message(mapped), path + " can't be opened" + none);
  for (const absl::Status& status :
       {WriteWholeFile(path, "x"), ReplaceFile(path, "x"),
        HiddenFile::Create(path).status(),
        OutputFile::Open(path, OutputFile::Start::kAtEnd).status()}) {
    EXPECT_TRUE(absl::IsNotFound(status));
    EXPECT_EQ(Message(status), path + " can't be written" + none);
  }
  EXPECT_TRUE(RemoveTree(path).ok());
}

TEST(FilesTest, AFullDiskIsOneMessage) {
  const std::string full =
      "/dev/full can't be written: No space left on device";
  const absl::Status whole = WriteWholeFile("/dev/full", "x");
  EXPECT_TRUE(absl::IsResourceExhausted(whole));
  EXPECT_EQ(Message(whole), full);
  auto file = OutputFile::Open("/dev/full", OutputFile::Start::kAtEnd);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(Message(file->Append("x")), full);
  // The first error is kept.
  EXPECT_EQ(Message(file->Append("")), full);
  EXPECT_EQ(Message(file->Sync()), full);
  EXPECT_EQ(Message(file->Close()), full);
  // The hidden file is a symlink to the device.
  const std::string path = NewFolder() + "/a";
  ASSERT_EQ(symlink("/dev/full", HiddenSibling(path, "new").c_str()), 0);
  const absl::Status replaced = ReplaceFile(path, "x");
  EXPECT_TRUE(absl::IsResourceExhausted(replaced));
  EXPECT_EQ(Message(replaced),
            path + " can't be written: No space left on device");
  EXPECT_FALSE(PathExists(path));
  EXPECT_NE(access(HiddenSibling(path, "new").c_str(), F_OK), 0);
}

TEST(FilesTest, AFolderIsNoFile) {
  const std::string folder = NewFolder();
  EXPECT_EQ(Message(ReadWholeFile(folder).status()),
            folder + ": Is a directory");
  EXPECT_EQ(Message(MappedFile::Open(folder).status()),
            folder + " is not a file");
  const std::string in_the_way = folder + "/a";
  ASSERT_TRUE(MakeFolder(in_the_way + "/full").ok());
  for (const absl::Status& status :
       {WriteWholeFile(in_the_way, "x"), ReplaceFile(in_the_way, "x"),
        OutputFile::Open(in_the_way, OutputFile::Start::kEmpty).status()}) {
    EXPECT_EQ(Message(status),
              in_the_way + " can't be written: Is a directory");
  }
  EXPECT_FALSE(PathExists(HiddenSibling(in_the_way, "new")));
  ASSERT_TRUE(WriteWholeFile(folder + "/file", "x").ok());
  EXPECT_EQ(Message(MakeFolder(folder + "/file/b")),
            folder + "/file/b: Not a directory");
}

TEST(FilesTest, ReadsFilesThatSayTheyAreEmpty) {
  EXPECT_THAT(*ReadWholeFile("/proc/self/status"), HasSubstr("VmRSS:"));
}

TEST(FilesTest, Mapped) {
  const std::string path = NewFolder() + "/a";
  ASSERT_TRUE(WriteWholeFile(path, "").ok());
  EXPECT_EQ(Message(MappedFile::Open(path).status()), path + " is empty");
  MapOptions options;
  options.may_be_empty = true;
  EXPECT_EQ((*MappedFile::Open(path, options))->bytes(), "");
  ASSERT_TRUE(WriteWholeFile(path, "abc").ok());
  options.in_order = true;
  const auto file = MappedFile::Open(path, options);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->bytes(), "abc");
  EXPECT_EQ((*file)->path(), path);
}

TEST(OutputFileTest, Starts) {
  using Start = OutputFile::Start;
  const std::string path = NewFolder() + "/a";
  const auto write = [&path](Start start, const char* text) {
    auto file = OutputFile::Open(path, start);
    if (!file.ok()) return file.status();
    OutputFile moved = *std::move(file);
    const absl::Status status = moved.Append(text);
    return status.ok() ? moved.Close() : status;
  };
  EXPECT_TRUE(write(Start::kNew, "one").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(write(Start::kNew, "two")));
  EXPECT_TRUE(write(Start::kAtEnd, " three").ok());
  EXPECT_EQ(*ReadWholeFile(path), "one three");
  EXPECT_TRUE(write(Start::kEmpty, "four").ok());
  EXPECT_EQ(*ReadWholeFile(path), "four");
}

TEST(HiddenFileTest, AppearsWholeOrNotAtAll) {
  const std::string path = NewFolder() + "/a";
  ASSERT_TRUE(ReplaceFile(path, "old").ok());
  {
    auto file = HiddenFile::Create(path, "mine");
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE((*file)->Write("half").ok());
    EXPECT_EQ(*ReadWholeFile(HiddenSibling(path, "mine")), "half");
  }
  EXPECT_FALSE(PathExists(HiddenSibling(path, "mine")));
  EXPECT_EQ(*ReadWholeFile(path), "old");
  auto file = HiddenFile::Create(path);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE((*file)->Write("____ and more").ok());
  ASSERT_TRUE((*file)->Rewind().ok());
  ASSERT_TRUE((*file)->Write("head").ok());
  EXPECT_EQ(*ReadWholeFile(path), "old");
  ASSERT_TRUE((*file)->Close().ok());
  EXPECT_EQ(*ReadWholeFile(path), "head and more");
  EXPECT_FALSE(PathExists(HiddenSibling(path, "new")));
}

TEST(FilesTest, ReplaceFolder) {
  const std::string root = NewFolder();
  const std::string to = root + "/to";
  for (const char* text : {"one", "two"}) {
    const std::string from = HiddenSibling(to, "tmp");
    EXPECT_EQ(from, root + "/.to.tmp");
    ASSERT_TRUE(MakeFolder(from).ok());
    ASSERT_TRUE(WriteWholeFile(from + "/file", text).ok());
    ASSERT_TRUE(SyncFolderAndFiles(from).ok());
    ASSERT_TRUE(ReplaceFolder(from, to).ok());
    EXPECT_EQ(*ReadWholeFile(to + "/file"), text);
    EXPECT_FALSE(PathExists(from));
    EXPECT_FALSE(PathExists(HiddenSibling(to, "old")));
  }
  EXPECT_FALSE(ReplaceFolder(root + "/none", to).ok());
  EXPECT_EQ(*ReadWholeFile(to + "/file"), "two");
}

// A code that says something else of a run: that another rank is lost.
TEST(FilesTest, WhatASystemCallLacksIsNoLostRank) {
  EXPECT_TRUE(absl::IsUnavailable(absl::ErrnoToStatus(ENOLCK, "")));
  for (const int error : {ENOLCK, EHOSTDOWN, ECANCELED}) {
    const absl::Status status = WriteError("out/file", error);
    EXPECT_EQ(status.code(), absl::StatusCode::kUnknown) << status;
    EXPECT_EQ(status.message(), absl::StrCat("out/file can't be written: ",
                                             std::strerror(error)));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(WriteError("out/file", ENOSPC)));
}

TEST(FilesTest, ErrorsKeepTheirNumber) {
  EXPECT_EQ(ErrnoOf(WriteError("out/file", ESTALE)), ESTALE);
  EXPECT_EQ(ErrnoOf(Annotate(WriteError("out/file", EIO), "save")), EIO);
  EXPECT_EQ(ErrnoOf(ReadWholeFile("/no/such").status()), ENOENT);
  EXPECT_EQ(ErrnoOf(MakeFolder("/dev/null/x")), ENOTDIR);
  EXPECT_EQ(ErrnoOf(absl::OkStatus()), 0);
  EXPECT_EQ(ErrnoOf(absl::InternalError(std::strerror(EIO))), 0);
}

TEST(FilesTest, TooLargeFilesAreRefused) {
  const std::string path = NewFolder() + "/text";
  ASSERT_TRUE(WriteWholeFile(path, "12345").ok());
  EXPECT_EQ(*ReadWholeFile(path, 5), "12345");
  EXPECT_EQ(Message(ReadWholeFile(path, 4).status()),
            path +
                " is too large: it has more than the 4 bytes that such a "
                "file may have");
  // A hole as large as the disk costs nothing to make.
  ASSERT_EQ(truncate(path.c_str(), int64_t{1} << 40), 0);
  EXPECT_THAT(Message(ReadWholeFile(path).status()), HasSubstr("too large"));
}

TEST(HiddenFileTest, WritersOfOnePathDoNotMix) {
  const std::string folder = NewFolder();
  const std::string path = folder + "/x";
  auto first = HiddenFile::Create(path);
  auto second = HiddenFile::Create(path);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE((*first)->Write("the first's").ok());
  ASSERT_TRUE((*second)->Write("second").ok());
  ASSERT_TRUE((*first)->Write(" text").ok());
  ASSERT_TRUE((*first)->Close().ok());
  EXPECT_EQ(*ReadWholeFile(path), "the first's text");
  ASSERT_TRUE((*second)->Close().ok());
  EXPECT_EQ(*ReadWholeFile(path), "second");
  EXPECT_FALSE(PathExists(folder + "/.x.new"));
  EXPECT_FALSE(PathExists(folder + "/.x.new.2"));
}

TEST(HiddenFileTest, LeftOversAreUsedOrRemoved) {
  const std::string folder = NewFolder();
  ASSERT_TRUE(WriteWholeFile(folder + "/.x.new", "of a killed writer").ok());
  ASSERT_TRUE(WriteWholeFile(folder + "/.x.new.2", "of another").ok());
  ASSERT_TRUE(ReplaceFile(folder + "/x", "new").ok());
  EXPECT_EQ(*ReadWholeFile(folder + "/x"), "new");
  EXPECT_FALSE(PathExists(folder + "/.x.new"));
  EXPECT_FALSE(PathExists(folder + "/.x.new.2"));
}

// Not in the current folder.
TEST(ScratchFolderTest, ATmpdirThatIsGoneIsAnError) {
  const char* const before = getenv("TMPDIR");
  const std::string kept = before == nullptr ? "" : before;
  setenv("TMPDIR", (NewFolder() + "/gone").c_str(), 1);
  const ScratchFolder folder;
  EXPECT_FALSE(folder.status().ok());
  EXPECT_EQ(folder.path(), "");
  before == nullptr ? unsetenv("TMPDIR") : setenv("TMPDIR", kept.c_str(), 1);
}

}  // namespace
}  // namespace capstan
