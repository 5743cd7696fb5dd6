// SPDX-License-Identifier: Apache-2.0
//
// What an index of rows holds (with tokens if the first byte is odd), in a
// cached file with a checksum that fits, as whoever can write the folder can
// make one.
#include <isa-l/crc64.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "datasets/chat/chat.h"
#include "glog/logging.h"
#include "text/chat_template/fake_tokenizer.h"

namespace {

namespace fs = std::filesystem;
using capstan::chat::Chat;
using capstan::chat::Config;

constexpr size_t kTrailerBytes = 40;

uint64_t Crc(absl::string_view bytes) {
  return crc64_ecma_refl(
      0, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
}

void Append(uint64_t number, std::string* bytes) {
  bytes->append(reinterpret_cast<const char*>(&number), sizeof(number));
}

// A data file with its cache.
class Data {
 public:
  explicit Data(capstan::chat::Packing packing) {
    // The notes that a file is damaged.
    std::cerr.setstate(std::ios::badbit);
    std::string folder = fs::temp_directory_path() / "chat_cache_XXXXXX";
    PCHECK(mkdtemp(&folder[0]) != nullptr);
    folder_ = folder;
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int i = 0; i < 20; ++i) {
      rows << "{\"text\": \"" << std::string(1 + i % 7, 'a' + i) << "\"}\n";
    }
    rows.close();
    config_.set_path((folder_ / "rows.jsonl").string());
    config_.set_max_length(16);
    config_.set_packing(packing);
    config_.set_validation_fraction(0.2);
    CHECK(Open().ok());
    for (const auto& entry : fs::directory_iterator(folder_ / ".capstan")) {
      if (entry.path().filename() == "lock") continue;
      path_ = entry.path();
      std::ifstream in(path_, std::ios::binary);
      good_ = {std::istreambuf_iterator<char>(in), {}};
    }
  }
  ~Data() { fs::remove_all(folder_); }

  absl::StatusOr<std::unique_ptr<Chat>> Open() const {
    auto tokenizer =
        std::make_unique<capstan::FakeTokenizer>(std::vector<std::string>{});
    return Chat::Create(config_, std::move(tokenizer), 1);
  }

  // Puts `contents` into the cache; Restore puts its own back.
  void Forge(const std::string& contents) const {
    const std::string keys =
        good_.substr(good_.size() - kTrailerBytes, 2 * sizeof(uint64_t));
    std::string trailer = keys;
    Append(contents.size(), &trailer);
    Append(Crc(contents), &trailer);
    Append(Crc(trailer), &trailer);
    Write(contents + trailer);
  }
  void Restore() const { Write(good_); }

 private:
  void Write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary) << bytes;
  }

  fs::path folder_;
  Config config_;
  fs::path path_;
  std::string good_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Data samples(capstan::chat::BEST_FIT);
  static const Data tokens(capstan::chat::BEST_FIT_SPLIT);
  if (size == 0) return 0;
  const Data& files = (data[0] & 1) == 0 ? samples : tokens;
  files.Forge({reinterpret_cast<const char*>(data) + 1, size - 1});
  const auto chat = files.Open();
  if (chat.ok()) {
    CHECK_GE((*chat)->size(), 0);
    capstan::Batch batch;
    for (int64_t i = 0; i < std::min<int64_t>((*chat)->size(), 100); ++i) {
      (*chat)->sample_length(i);
      (*chat)->Read({i}, &batch).IgnoreError();
    }
    const auto validation = (*chat)->Validation();
    if (validation.ok() && (*validation)->size() > 0) {
      (*validation)->Read({0}, &batch).IgnoreError();
    }
  }
  files.Restore();
  return 0;
}
