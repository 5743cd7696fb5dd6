// SPDX-License-Identifier: Apache-2.0
#include "datasets/tables/json_rows.h"

#include <charconv>
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "arrow/array.h"
#include "arrow/scalar.h"
#include "arrow/type.h"
#include "arrow/util/checked_cast.h"
#include "arrow/util/utf8.h"

namespace capstan {
namespace {

using arrow::internal::checked_cast;

// simdjson, which parses the rows, goes no deeper either.
constexpr int kMostDepth = 64;

void AppendEscaped(unsigned char c, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      *out += "\\\"";
      return;
    case '\\':
      *out += "\\\\";
      return;
    case '\n':
      *out += "\\n";
      return;
    case '\r':
      *out += "\\r";
      return;
    case '\t':
      *out += "\\t";
      return;
    default:
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
  }
}

void AppendText(std::string_view text, std::string* out) {
  *out += '"';
  size_t done = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c != '"' && c != '\\') continue;
    out->append(text, done, i - done);
    AppendEscaped(c, out);
    done = i + 1;
  }
  out->append(text, done);
  *out += '"';
}

template <typename T>
void AppendNumber(T value, std::string* out) {
  if constexpr (std::is_floating_point_v<T>) {
    if (!std::isfinite(value)) {  // which JSON doesn't have
      *out += "null";
      return;
    }
  }
  char digits[64];
  const auto end = std::to_chars(digits, digits + sizeof(digits), value).ptr;
  out->append(digits, end);
}

arrow::Status Append(const arrow::Array& array, int64_t i, int depth,
                     std::string* out);

arrow::Status AppendList(const arrow::Array& values, int64_t begin, int64_t end,
                         int depth, std::string* out) {
  *out += '[';
  for (int64_t i = begin; i < end; ++i) {
    if (i > begin) *out += ',';
    ARROW_RETURN_NOT_OK(Append(values, i, depth, out));
  }
  *out += ']';
  return arrow::Status::OK();
}

template <typename List>
arrow::Status AppendListAt(const arrow::Array& array, int64_t i, int depth,
                           std::string* out) {
  const auto& list = checked_cast<const List&>(array);
  const int64_t begin = list.value_offset(i);
  return AppendList(*list.values(), begin, begin + list.value_length(i), depth,
                    out);
}

// `value` may be null, or bytes that aren't text: then nothing is appended.
bool HasValue(const arrow::Array& array, int64_t i) {
  if (array.IsNull(i)) return false;
  std::string_view bytes;
  switch (array.type_id()) {
    case arrow::Type::NA:
      return false;
    case arrow::Type::BINARY:
      bytes = checked_cast<const arrow::BinaryArray&>(array).GetView(i);
      break;
    case arrow::Type::LARGE_BINARY:
      bytes = checked_cast<const arrow::LargeBinaryArray&>(array).GetView(i);
      break;
    case arrow::Type::FIXED_SIZE_BINARY:
      return false;
    default:
      return true;
  }
  return arrow::util::ValidateUTF8(bytes);
}

arrow::Status AppendStruct(const arrow::StructArray& array, int64_t i,
                           int depth, std::string* out) {
  *out += '{';
  bool first = true;
  for (int field = 0; field < array.num_fields(); ++field) {
    const arrow::Array& values = *array.field(field);
    if (!HasValue(values, i)) continue;
    if (!first) *out += ',';
    first = false;
    AppendText(array.struct_type()->field(field)->name(), out);
    *out += ':';
    ARROW_RETURN_NOT_OK(Append(values, i, depth, out));
  }
  *out += '}';
  return arrow::Status::OK();
}

// A map with keys that are texts is an object, as in JSON.
arrow::Status AppendMap(const arrow::MapArray& array, int64_t i, int depth,
                        std::string* out) {
  const arrow::Array& keys = *array.keys();
  const int64_t begin = array.value_offset(i);
  const int64_t end = begin + array.value_length(i);
  *out += '{';
  for (int64_t entry = begin; entry < end; ++entry) {
    if (entry > begin) *out += ',';
    ARROW_ASSIGN_OR_RAISE(const auto key, keys.GetScalar(entry));
    AppendText(key->ToString(), out);
    *out += ':';
    ARROW_RETURN_NOT_OK(Append(*array.items(), entry, depth, out));
  }
  *out += '}';
  return arrow::Status::OK();
}

template <typename Array>
arrow::Status AppendNumberAt(const arrow::Array& array, int64_t i,
                             std::string* out) {
  AppendNumber(checked_cast<const Array&>(array).Value(i), out);
  return arrow::Status::OK();
}

template <typename Array>
arrow::Status AppendTextAt(const arrow::Array& array, int64_t i,
                           std::string* out) {
  AppendText(checked_cast<const Array&>(array).GetView(i), out);
  return arrow::Status::OK();
}

arrow::Status AppendNested(const arrow::Array& array, int64_t i, int depth,
                           std::string* out) {
  if (depth > kMostDepth) {
    return arrow::Status::Invalid("lists and structs are nested more than ",
                                  kMostDepth, " deep");
  }
  switch (array.type_id()) {
    case arrow::Type::STRUCT:
      return AppendStruct(checked_cast<const arrow::StructArray&>(array), i,
                          depth, out);
    case arrow::Type::MAP:
      return AppendMap(checked_cast<const arrow::MapArray&>(array), i, depth,
                       out);
    case arrow::Type::LIST:
      return AppendListAt<arrow::ListArray>(array, i, depth, out);
    case arrow::Type::LARGE_LIST:
      return AppendListAt<arrow::LargeListArray>(array, i, depth, out);
    default:
      return AppendListAt<arrow::FixedSizeListArray>(array, i, depth, out);
  }
}

arrow::Status Append(const arrow::Array& array, int64_t i, int depth,
                     std::string* out) {
  using arrow::Type;
  if (!HasValue(array, i)) {
    *out += "null";
    return arrow::Status::OK();
  }
  switch (array.type_id()) {
    case Type::STRING:
      return AppendTextAt<arrow::StringArray>(array, i, out);
    case Type::LARGE_STRING:
      return AppendTextAt<arrow::LargeStringArray>(array, i, out);
    case Type::STRING_VIEW:
      return AppendTextAt<arrow::StringViewArray>(array, i, out);
    case Type::BINARY:
      return AppendTextAt<arrow::BinaryArray>(array, i, out);
    case Type::LARGE_BINARY:
      return AppendTextAt<arrow::LargeBinaryArray>(array, i, out);
    case Type::BOOL:
      *out += checked_cast<const arrow::BooleanArray&>(array).Value(i)
                  ? "true"
                  : "false";
      return arrow::Status::OK();
    case Type::INT8:
      return AppendNumberAt<arrow::Int8Array>(array, i, out);
    case Type::INT16:
      return AppendNumberAt<arrow::Int16Array>(array, i, out);
    case Type::INT32:
      return AppendNumberAt<arrow::Int32Array>(array, i, out);
    case Type::INT64:
      return AppendNumberAt<arrow::Int64Array>(array, i, out);
    case Type::UINT8:
      return AppendNumberAt<arrow::UInt8Array>(array, i, out);
    case Type::UINT16:
      return AppendNumberAt<arrow::UInt16Array>(array, i, out);
    case Type::UINT32:
      return AppendNumberAt<arrow::UInt32Array>(array, i, out);
    case Type::UINT64:
      return AppendNumberAt<arrow::UInt64Array>(array, i, out);
    case Type::FLOAT:
      return AppendNumberAt<arrow::FloatArray>(array, i, out);
    case Type::DOUBLE:
      return AppendNumberAt<arrow::DoubleArray>(array, i, out);
    case Type::DICTIONARY: {
      const auto& dictionary =
          checked_cast<const arrow::DictionaryArray&>(array);
      return Append(*dictionary.dictionary(), dictionary.GetValueIndex(i),
                    depth + 1, out);
    }
    case Type::STRUCT:
    case Type::MAP:
    case Type::LIST:
    case Type::LARGE_LIST:
    case Type::FIXED_SIZE_LIST:
      return AppendNested(array, i, depth + 1, out);
    default: {
      ARROW_ASSIGN_OR_RAISE(const auto value, array.GetScalar(i));
      AppendText(value->ToString(), out);
      return arrow::Status::OK();
    }
  }
}

}  // namespace

arrow::Status AppendRows(const arrow::RecordBatch& batch, std::string* out) {
  std::vector<std::string> keys;
  for (const auto& field : batch.schema()->fields()) {
    AppendText(field->name(), &keys.emplace_back());
    keys.back() += ':';
  }
  for (int64_t row = 0; row < batch.num_rows(); ++row) {
    *out += '{';
    bool first = true;
    for (int column = 0; column < batch.num_columns(); ++column) {
      const arrow::Array& values = *batch.column(column);
      if (!HasValue(values, row)) continue;
      if (!first) *out += ',';
      first = false;
      *out += keys[column];
      ARROW_RETURN_NOT_OK(Append(values, row, 0, out));
    }
    *out += "}\n";
  }
  return arrow::Status::OK();
}

}  // namespace capstan
