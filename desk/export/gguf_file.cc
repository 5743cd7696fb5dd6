// SPDX-License-Identifier: Apache-2.0
#include "desk/export/gguf_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "glog/logging.h"

namespace capstan {
namespace {

constexpr char kMagic[] = "GGUF";
constexpr uint32_t kVersion = 3;
// Of each tensor's bytes, from the first's on.
constexpr int64_t kAlignment = 32;

// The format's numbers of the kinds of values.
enum Kind : uint32_t {
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
};

int64_t Padded(int64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// Appends values to the bytes of a header.
class Header {
 public:
  template <typename Number>
  void Put(Number number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Put(const std::string& text) {
    Put<uint64_t>(text.size());
    bytes_ += text;
  }
  void Put(bool value) { bytes_ += static_cast<char>(value); }

  void Value(uint32_t value) { Kinded(kUint32, value); }
  void Value(float value) { Kinded(kFloat32, value); }
  void Value(bool value) { Kinded(kBool, value); }
  void Value(const std::string& value) { Kinded(kString, value); }
  void Value(const std::vector<int32_t>& list) { List(kInt32, list); }
  void Value(const std::vector<float>& list) { List(kFloat32, list); }
  void Value(const std::vector<bool>& list) { List(kBool, list); }
  void Value(const std::vector<std::string>& list) { List(kString, list); }

  std::string& bytes() { return bytes_; }

 private:
  template <typename T>
  void Kinded(Kind kind, const T& value) {
    Put<uint32_t>(kind);
    Put(value);
  }
  template <typename T>
  void List(Kind kind, const std::vector<T>& list) {
    Put<uint32_t>(kArray);
    Put<uint32_t>(kind);
    Put<uint64_t>(list.size());
    for (const auto& item : list) Put(static_cast<const T&>(item));
  }

  std::string bytes_;
};

// Reads a header. What is beyond the end is 0 or empty, and makes it !ok().
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Get() {
    Number number{};
    const absl::string_view bytes = Bytes(sizeof(number));
    if (ok_) std::memcpy(&number, bytes.data(), sizeof(number));
    return number;
  }
  void Get(uint32_t* value) { *value = Get<uint32_t>(); }
  void Get(int32_t* value) { *value = Get<int32_t>(); }
  void Get(float* value) { *value = Get<float>(); }
  void Get(bool* value) { *value = Get<uint8_t>() != 0; }
  void Get(std::string* value) { *value = std::string(Bytes(Get<uint64_t>())); }
  template <typename T>
  std::vector<T> List(uint64_t count) {
    std::vector<T> list;
    for (uint64_t i = 0; i < count && ok_; ++i) {
      T item;
      Get(&item);
      list.push_back(item);
    }
    return list;
  }
  GgufValue Value(uint32_t kind);

  bool ok() const { return ok_; }
  int64_t place() const { return static_cast<int64_t>(place_); }

 private:
  template <typename T>
  T One() {
    T value;
    Get(&value);
    return value;
  }
  absl::string_view Bytes(uint64_t count) {
    ok_ = ok_ && count <= bytes_.size() - place_;
    if (!ok_) return "";
    place_ += count;
    return bytes_.substr(place_ - count, count);
  }

  const absl::string_view bytes_;
  size_t place_ = 0;
  bool ok_ = true;
};

GgufValue Cursor::Value(uint32_t kind) {
  switch (kind) {
    case kUint32:
      return One<uint32_t>();
    case kFloat32:
      return One<float>();
    case kBool:
      return One<bool>();
    case kString:
      return One<std::string>();
    case kArray: {
      const auto of = Get<uint32_t>();
      const auto count = Get<uint64_t>();
      if (of == kInt32) return List<int32_t>(count);
      if (of == kFloat32) return List<float>(count);
      if (of == kBool) return List<bool>(count);
      if (of == kString) return List<std::string>(count);
    }
  }
  ok_ = false;
  return uint32_t{0};
}

}  // namespace

int64_t GgufTensor::values() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

GgufWriter::GgufWriter(std::string path, OutputFile file,
                       const std::vector<GgufTensor>& tensors)
    : path_(std::move(path)), file_(std::move(file)) {
  for (const GgufTensor& tensor : tensors) bytes_.push_back(tensor.bytes());
  if (!bytes_.empty()) left_ = bytes_[0];
}

GgufWriter::~GgufWriter() {
  if (!closed_) unlink(path_.c_str());
}

absl::StatusOr<std::unique_ptr<GgufWriter>> GgufWriter::Create(
    const std::string& path, const GgufValues& values,
    const std::vector<GgufTensor>& tensors) {
  Header header;
  header.bytes() = kMagic;
  header.Put(kVersion);
  header.Put<uint64_t>(tensors.size());
  header.Put<uint64_t>(values.size());
  for (const auto& [key, value] : values) {
    header.Put(key);
    std::visit([&](const auto& one) { header.Value(one); }, value);
  }
  int64_t offset = 0;
  for (const GgufTensor& tensor : tensors) {
    header.Put(tensor.name);
    header.Put(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) {
      header.Put(static_cast<uint64_t>(tensor.shape[i]));
    }
    header.Put(static_cast<uint32_t>(tensor.type));
    header.Put(static_cast<uint64_t>(offset));
    offset += Padded(tensor.bytes());
  }
  header.bytes().resize(Padded(static_cast<int64_t>(header.bytes().size())));
  CAPSTAN_ASSIGN_OR_RETURN(OutputFile file,
                           OutputFile::Open(path, OutputFile::Start::kNew));
  std::unique_ptr<GgufWriter> writer(
      new GgufWriter(path, std::move(file), tensors));
  CAPSTAN_RETURN_IF_ERROR(writer->file_.Append(header.bytes()));
  return writer;
}

absl::Status GgufWriter::Append(absl::string_view bytes) {
  CHECK_LE(static_cast<int64_t>(bytes.size()), left_);
  CAPSTAN_RETURN_IF_ERROR(file_.Append(bytes));
  left_ -= static_cast<int64_t>(bytes.size());
  if (left_ > 0) return absl::OkStatus();
  const int64_t written = bytes_[tensor_++];
  left_ = tensor_ < bytes_.size() ? bytes_[tensor_] : 0;
  return file_.Append(std::string(Padded(written) - written, '\0'));
}

absl::Status GgufWriter::Close() {
  if (tensor_ < bytes_.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": tensors are missing"));
  }
  CAPSTAN_RETURN_IF_ERROR(file_.Close());
  closed_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<GgufReader>> GgufReader::Open(
    const std::string& path) {
  std::unique_ptr<GgufReader> reader(new GgufReader);
  CAPSTAN_ASSIGN_OR_RETURN(reader->file_, MappedFile::Open(path));
  const absl::string_view bytes = reader->file_->bytes();
  const auto damaged = [&](absl::string_view why) {
    return absl::DataLossError(absl::StrCat(path, " is damaged: ", why));
  };
  Cursor cursor(bytes);
  if (cursor.Get<std::array<char, 4>>() !=
          std::array<char, 4>{'G', 'G', 'U', 'F'} ||
      cursor.Get<uint32_t>() != kVersion) {
    return damaged("it isn't a GGUF file of version 3");
  }
  const auto tensors = cursor.Get<uint64_t>();
  const auto values = cursor.Get<uint64_t>();
  for (uint64_t i = 0; i < values && cursor.ok(); ++i) {
    std::string key;
    cursor.Get(&key);
    reader->values_.emplace_back(key, cursor.Value(cursor.Get<uint32_t>()));
  }
  std::vector<std::pair<GgufTensor, uint64_t>> found;  // and offsets
  for (uint64_t i = 0; i < tensors && cursor.ok(); ++i) {
    GgufTensor tensor;
    cursor.Get(&tensor.name);
    const auto dimensions = cursor.Get<uint32_t>();
    for (uint32_t d = 0; d < dimensions && cursor.ok(); ++d) {
      tensor.shape.push_back(static_cast<int64_t>(cursor.Get<uint64_t>()));
    }
    std::reverse(tensor.shape.begin(), tensor.shape.end());
    tensor.type = static_cast<GgufType>(cursor.Get<uint32_t>());
    found.emplace_back(std::move(tensor), cursor.Get<uint64_t>());
  }
  if (!cursor.ok()) return damaged("its header ends early or isn't ours");
  const int64_t start = Padded(cursor.place());
  for (auto& [tensor, offset] : found) {
    if (GgufTypeName(tensor.type).empty()) {
      return damaged(absl::StrCat("the type of ", tensor.name));
    }
    const int64_t end = start + static_cast<int64_t>(offset) + tensor.bytes();
    if (end > static_cast<int64_t>(bytes.size())) {
      return damaged(absl::StrCat("it ends before ", tensor.name, " does"));
    }
    Entry entry = {tensor, bytes.data() + start + offset};
    reader->tensors_.emplace(tensor.name, std::move(entry));
  }
  return reader;
}

}  // namespace capstan
