// SPDX-License-Identifier: Apache-2.0
#include "base/npy.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/json.h"
#include "base/status.h"
#include "glog/logging.h"

namespace capstan {
namespace {

constexpr absl::string_view kMagic = "\x93NUMPY";
constexpr size_t kVersionEnd = 8;  // magic, major, minor

struct TypeRow {
  NpyType type;
  const char* name;
  const char* code;  // after the byte order
  int64_t bytes;
};

constexpr TypeRow kTypes[] = {
    {NpyType::kBool, "bool", "b1", 1},
    {NpyType::kInt8, "int8", "i1", 1},
    {NpyType::kInt16, "int16", "i2", 2},
    {NpyType::kInt32, "int32", "i4", 4},
    {NpyType::kInt64, "int64", "i8", 8},
    {NpyType::kUint8, "uint8", "u1", 1},
    {NpyType::kUint16, "uint16", "u2", 2},
    {NpyType::kUint32, "uint32", "u4", 4},
    {NpyType::kUint64, "uint64", "u8", 8},
    {NpyType::kFloat16, "float16", "f2", 2},
    {NpyType::kFloat32, "float32", "f4", 4},
    {NpyType::kFloat64, "float64", "f8", 8},
};

const TypeRow& RowOf(NpyType type) { return kTypes[static_cast<int>(type)]; }

// A header, which is a Python dictionary of literals, as JSON:
// {'descr': '<i8', 'fortran_order': False, 'shape': (4, 64), }
std::string AsJson(absl::string_view header) {
  const std::string text = absl::StrReplaceAll(header, {{"'", "\""},
                                                        {"(", "["},
                                                        {")", "]"},
                                                        {"False", "false"},
                                                        {"True", "true"}});
  std::string json;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ',') {  // JSON has none before a bracket
      const size_t next = text.find_first_not_of(" \t\n", i + 1);
      if (next < text.size() && (text[next] == ']' || text[next] == '}')) {
        continue;
      }
    }
    json += text[i];
  }
  return json;
}

struct Fields {
  std::string descr;
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

absl::StatusOr<Fields> ParseFields(absl::string_view text) {
  const absl::Status malformed = absl::InvalidArgumentError(
      "isn't a .npy file: its header doesn't say descr, fortran_order and "
      "shape as numpy does");
  const auto json = ParseJson<nlohmann::json>(AsJson(text));
  if (!json.is_object() || json.size() != 3 || !json.contains("descr") ||
      !json.contains("fortran_order") || !json.contains("shape")) {
    return malformed;
  }
  const nlohmann::json &descr = json["descr"], &order = json["fortran_order"];
  if (descr.is_array()) {
    return absl::InvalidArgumentError(
        "holds records: save each field as an array of its own");
  }
  if (!descr.is_string() || !order.is_boolean() || !json["shape"].is_array() ||
      absl::c_count(text, ':') != 3) {  // else a key is there twice
    return malformed;
  }
  Fields fields = {descr.get<std::string>(), order.get<bool>(), {}};
  for (const nlohmann::json& size : json["shape"]) {
    fields.shape.push_back(JsonInteger(size).value_or(-1));
    if (fields.shape.back() < 0) return malformed;
  }
  return fields;
}

absl::StatusOr<NpyType> ParseType(const std::string& descr) {
  for (const TypeRow& row : kTypes) {
    if (descr.substr(std::min<size_t>(1, descr.size())) != row.code) continue;
    const char order = descr[0];
    if (order == '<' || (row.bytes == 1 && (order == '|' || order == '>'))) {
      return row.type;
    }
    if (order == '>') {
      return absl::InvalidArgumentError(
          absl::StrCat("holds big-endian numbers ('", descr,
                       "'): save it with array.astype('<", row.code, "')"));
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("holds elements of the type '", descr,
                   "': only bool, int8 to int64, uint8 to uint64 and float16 "
                   "to float64 are read"));
}

uint64_t LittleEndian(absl::string_view bytes) {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) {
    value = value << 8 | static_cast<unsigned char>(bytes[i - 1]);
  }
  return value;
}

// Number of elements in a shape; an error if they exceed any file's size.
absl::StatusOr<int64_t> Elements(const std::vector<int64_t>& shape,
                                 int64_t type_bytes) {
  int64_t elements = 1;
  if (absl::c_linear_search(shape, 0)) return 0;
  for (int64_t size : shape) {
    if (size < 0 ||
        elements > std::numeric_limits<int64_t>::max() / type_bytes / size) {
      return absl::InvalidArgumentError(
          absl::StrCat("has a shape that no file holds: [",
                       absl::StrJoin(shape, ", "), "]"));
    }
    elements *= size;
  }
  return elements;
}

// As numpy writes it: the smallest version that holds the text, padded so that
// the data is aligned to 64 bytes.
std::string HeaderBytes(NpyType type, const std::vector<int64_t>& shape) {
  const TypeRow& row = RowOf(type);
  std::string text = absl::StrCat(
      "{'descr': '", row.bytes == 1 ? "|" : "<", row.code,
      "', 'fortran_order': False, 'shape': (", absl::StrJoin(shape, ", "),
      shape.size() == 1 ? ",), }" : "), }");
  // Padded size of magic, version, length, text and newline.
  const auto padded = [&text](size_t length_bytes) {
    return (8 + length_bytes + text.size() + 1 + 63) / 64 * 64;
  };
  const size_t length_bytes = padded(2) - 10 <= 0xffff ? 2 : 4;
  const size_t text_bytes = padded(length_bytes) - 8 - length_bytes;
  text.resize(text_bytes - 1, ' ');
  std::string header = "\x93NUMPY";
  header += length_bytes == 2 ? '\x01' : '\x02';
  header += '\0';
  for (size_t i = 0; i < length_bytes; ++i) {
    header += static_cast<char>((text_bytes >> (8 * i)) & 0xff);
  }
  return header + text + "\n";
}

}  // namespace

const char* NpyTypeName(NpyType type) { return RowOf(type).name; }

int64_t NpyHeader::elements() const {
  // In this order, [2^62, 4, 0] would overflow on its way to nothing.
  if (absl::c_linear_search(shape, 0)) return 0;
  int64_t n = 1;
  for (int64_t size : shape) n *= size;
  return n;
}

std::string NpyHeader::ShapeText() const {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<NpyHeader> ParseNpyHeader(absl::string_view file) {
  if (!absl::StartsWith(file, kMagic) || file.size() < kVersionEnd) {
    return absl::InvalidArgumentError(
        "isn't a .npy file: it doesn't begin as numpy.save writes it");
  }
  const int major = static_cast<unsigned char>(file[6]);
  if (major < 1 || major > 3 || file[7] != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is of .npy version ", major, ".", static_cast<unsigned char>(file[7]),
        ": 1.0, 2.0 and 3.0 are read"));
  }
  const size_t length_bytes = major == 1 ? 2 : 4;
  const size_t text_begin = kVersionEnd + length_bytes;
  const uint64_t text_size =
      file.size() < text_begin ? 0 : LittleEndian(file.substr(8, length_bytes));
  if (file.size() < text_begin || text_size > file.size() - text_begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("is truncated: it ends within its header, after ",
                     file.size(), " bytes"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Fields fields,
                           ParseFields(file.substr(text_begin, text_size)));
  NpyHeader header;
  CAPSTAN_ASSIGN_OR_RETURN(header.type, ParseType(fields.descr));
  header.shape = fields.shape;
  header.data_begin = text_begin + text_size;
  if (fields.fortran_order && fields.shape.size() > 1) {
    return absl::InvalidArgumentError(
        "is in Fortran order: save it with numpy.ascontiguousarray(array)");
  }
  const int64_t bytes = RowOf(header.type).bytes;
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t elements,
                           Elements(header.shape, bytes));
  const int64_t held = static_cast<int64_t>(file.size() - header.data_begin);
  if (held != elements * bytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        held < elements * bytes ? "is truncated" : "is longer than it says",
        ": ", header.ShapeText(), " elements of ", NpyTypeName(header.type),
        " are ", elements * bytes, " bytes, but there are ", held));
  }
  return header;
}

absl::StatusOr<std::shared_ptr<const NpyArray>> NpyArray::Open(
    const std::string& path) {
  CAPSTAN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path));
  absl::StatusOr<NpyHeader> header = ParseNpyHeader(file->bytes());
  if (!header.ok()) {
    return WithMessage(header.status(),
                       absl::StrCat(path, " ", header.status().message()));
  }
  return std::shared_ptr<const NpyArray>(
      new NpyArray(std::move(file), *std::move(header)));
}

NpyArray::NpyArray(std::shared_ptr<const MappedFile> file, NpyHeader header)
    : file_(std::move(file)), header_(std::move(header)) {}

void NpyArray::CheckRead(NpyType type, int64_t begin, int64_t n) const {
  CHECK(type == header_.type);
  CHECK(begin >= 0 && n >= 0 && n <= header_.elements() - begin);
}

NpyWriter::NpyWriter(std::unique_ptr<HiddenFile> file, NpyType type,
                     int64_t elements)
    : file_(std::move(file)), type_(type), elements_(elements) {}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(
    const std::string& path, NpyType type, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t size : shape) {
    CHECK_GE(size, 0) << path;
    elements *= size;
  }
  CAPSTAN_ASSIGN_OR_RETURN(std::unique_ptr<HiddenFile> file,
                           HiddenFile::Create(path));
  CAPSTAN_RETURN_IF_ERROR(file->Write(HeaderBytes(type, shape)));
  return std::unique_ptr<NpyWriter>(
      new NpyWriter(std::move(file), type, elements));
}

absl::Status NpyWriter::AppendBytes(NpyType type, absl::string_view bytes) {
  CHECK(type == type_) << file_->path();
  written_ += static_cast<int64_t>(bytes.size());
  return file_->Write(bytes);
}

absl::Status NpyWriter::Close() {
  const int64_t bytes = RowOf(type_).bytes;
  if (written_ != elements_ * bytes) {
    return absl::InternalError(absl::StrCat(file_->path(), ": its shape has ",
                                            elements_, " elements, but ",
                                            written_ / bytes, " were written"));
  }
  return file_->Close();
}

}  // namespace capstan
