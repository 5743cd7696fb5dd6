// SPDX-License-Identifier: Apache-2.0
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "plugins/sdk/lib/safetensors.h"

namespace capstan {

namespace {

using Json = nlohmann::json;

// The contents of one file; entries point into its bytes.
struct SafetensorsHeader {
  std::map<std::string, TensorEntry> tensors;
  std::map<std::string, std::string> metadata;
  // Of tensors whose dtype isn't one of SafetensorsDtype's.
  std::map<std::string, std::string> other_dtypes;
};

constexpr uint64_t kLengthBytes = 8;
// The format's own limit, so that a malicious length can't exhaust memory.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// Builds a Json as nlohmann's own parser does, but rejects duplicate keys
// (readers differ in which of them counts) and deep nesting.
class StrictSax final : public nlohmann::json_sax<Json> {
 public:
  explicit StrictSax(int max_depth) : max_depth_(max_depth) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool v) override { return Add(v); }
  bool number_integer(number_integer_t v) override { return Add(v); }
  bool number_unsigned(number_unsigned_t v) override { return Add(v); }
  bool number_float(number_float_t v, const string_t&) override {
    return Add(v);
  }
  bool string(string_t& v) override { return Add(std::move(v)); }
  bool binary(binary_t&) override { return Fail("has binary data"); }
  bool start_object(std::size_t) override { return Open(Json::object()); }
  bool start_array(std::size_t) override { return Open(Json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& v) override {
    if (stack_.back()->contains(v)) {
      return Fail(absl::StrCat("has the key '", v, "' twice"));
    }
    key_ = std::move(v);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("isn't JSON at byte ", position));
  }

  Json& root() { return root_; }
  const std::string& error() const { return error_; }

 private:
  Json* Place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(value));
      return &stack_.back()->back();
    }
    Json& slot = (*stack_.back())[key_];
    slot = std::move(value);
    return &slot;
  }
  bool Add(Json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(Json value) {
    if (stack_.size() >= max_depth_) return Fail("is nested too deeply");
    stack_.push_back(Place(std::move(value)));
    return true;
  }
  bool Close() {
    stack_.pop_back();
    return true;
  }
  bool Fail(std::string error) {
    error_ = std::move(error);
    return false;
  }

  const size_t max_depth_;
  Json root_;
  std::vector<Json*> stack_;
  std::string key_;
  std::string error_;
};

absl::StatusOr<Json> StrictParse(absl::string_view text, int max_depth) {
  // nlohmann's parser passes over a byte-order mark and takes NUL for the end.
  if (absl::StartsWith(text, "\xef\xbb\xbf")) {
    return absl::InvalidArgumentError("begins with a byte-order mark");
  }
  if (absl::StrContains(text, '\0')) {
    return absl::InvalidArgumentError("isn't JSON: it has NUL bytes");
  }
  StrictSax sax(max_depth);
  if (!Json::sax_parse(text.begin(), text.end(), &sax)) {
    if (const auto fitting = WithNumbersThatFit(text)) {
      return StrictParse(*fitting, max_depth);
    }
    return absl::InvalidArgumentError(sax.error());
  }
  if (!sax.root().is_object()) {
    return absl::InvalidArgumentError("isn't a JSON object");
  }
  return std::move(sax.root());
}

// `value` as a list of integers in [0, 2^63).
absl::StatusOr<std::vector<int64_t>> Naturals(const Json& value,
                                              absl::string_view key) {
  if (!value.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(key, " isn't a list"));
  }
  std::vector<int64_t> numbers;
  for (const Json& number : value) {
    const absl::optional<int64_t> natural = JsonInteger(number);
    if (natural.value_or(-1) < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat(key, " holds ", number.dump(),
                       ", which isn't a natural number below 2^63"));
    }
    numbers.push_back(*natural);
  }
  return numbers;
}

// `data`: all the bytes after the header. A dtype that is none of ours goes to
// *other_dtype: the tensor may be one that nobody reads.
absl::StatusOr<TensorEntry> ParseTensor(const Json& value,
                                        absl::string_view data,
                                        std::string* other_dtype) {
  if (!value.is_object() || !value.contains("dtype") ||
      !value.contains("shape") || !value.contains("data_offsets") ||
      !value["dtype"].is_string()) {
    return absl::InvalidArgumentError(
        "its entry wants dtype, shape and data_offsets");
  }
  const std::string dtype_name = value["dtype"].get<std::string>();
  TensorEntry entry;
  const absl::StatusOr<c10::ScalarType> dtype = SafetensorsDtype(dtype_name);
  if (!dtype.ok()) *other_dtype = dtype_name;
  entry.dtype = dtype.value_or(c10::ScalarType::Undefined);
  CAPSTAN_ASSIGN_OR_RETURN(entry.shape, Naturals(value["shape"], "shape"));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> offsets,
                           Naturals(value["data_offsets"], "data_offsets"));
  if (offsets.size() != 2) {
    return absl::InvalidArgumentError("data_offsets wants two numbers");
  }
  entry.numel = 1;
  bool overflow = false;
  for (int64_t d : entry.shape) {
    overflow |= __builtin_mul_overflow(entry.numel, d, &entry.numel);
  }
  if (dtype.ok()) {
    overflow |= __builtin_mul_overflow(
        entry.numel, static_cast<int64_t>(c10::elementSize(*dtype)),
        &entry.bytes);
  }
  const std::string shape =
      absl::StrCat("[", absl::StrJoin(entry.shape, ", "), "]");
  if (overflow) {
    return absl::InvalidArgumentError(
        absl::StrCat("its size overflows: shape ", shape));
  }
  if (offsets[0] > offsets[1] ||
      offsets[1] > static_cast<int64_t>(data.size())) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "its bytes [%d, %d) reach outside the %d bytes of data; the file may "
        "be truncated",
        offsets[0], offsets[1], data.size()));
  }
  if (!dtype.ok()) entry.bytes = offsets[1] - offsets[0];
  if (offsets[1] - offsets[0] != entry.bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s %s wants %d bytes, data_offsets give it %d", dtype_name, shape,
        entry.bytes, offsets[1] - offsets[0]));
  }
  entry.data = data.data() + offsets[0];
  return entry;
}

// The tensors must cover the data exactly once; those without bytes lie between
// others.
absl::Status CheckLayout(const SafetensorsHeader& header,
                         absl::string_view data) {
  std::vector<std::tuple<const char*, int64_t, const std::string*>> order;
  for (const auto& [name, entry] : header.tensors) {
    order.emplace_back(entry.data, entry.bytes, &name);
  }
  std::sort(order.begin(), order.end());
  const char* cursor = data.data();
  for (const auto& [begin, bytes, name] : order) {
    if (begin != cursor) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tensor '%s': %s at byte %d of the data", *name,
          begin < cursor ? "overlaps another tensor" : "leaves a hole before",
          begin - data.data()));
    }
    cursor += bytes;
  }
  const int64_t rest = data.data() + data.size() - cursor;
  if (rest != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d bytes at its end belong to no tensor", rest));
  }
  return absl::OkStatus();
}

// `bytes`: a whole file. Errors name the tensor.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(
    absl::string_view bytes) {
  if (bytes.size() < kLengthBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "is %d bytes long, too short for a safetensors file", bytes.size()));
  }
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) {
    length = length << 8 | static_cast<unsigned char>(bytes[i]);
  }
  if (length > bytes.size() - kLengthBytes || length > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "says that its header has %d bytes (the file has %d); it is truncated, "
        "or no safetensors file",
        length, bytes.size()));
  }
  absl::StatusOr<Json> json =
      StrictParse(bytes.substr(kLengthBytes, length), 4);
  if (!json.ok()) return Annotate(json.status(), "its header");
  const absl::string_view data = bytes.substr(kLengthBytes + length);
  SafetensorsHeader header;
  for (const auto& [name, value] : json->items()) {
    if (name == "__metadata__") {
      if (value.is_null()) continue;
      bool strings = value.is_object();
      for (const auto& [key, text] : value.items()) {
        strings = strings && text.is_string();
        if (strings) header.metadata[key] = text.get<std::string>();
      }
      if (!strings) {
        return absl::InvalidArgumentError(
            "__metadata__ isn't a map of strings");
      }
      continue;
    }
    std::string other_dtype;
    absl::StatusOr<TensorEntry> entry = ParseTensor(value, data, &other_dtype);
    if (!entry.ok()) {
      return Annotate(entry.status(), absl::StrCat("tensor '", name, "'"));
    }
    header.tensors[name] = *std::move(entry);
    if (!other_dtype.empty()) header.other_dtypes[name] = other_dtype;
  }
  CAPSTAN_RETURN_IF_ERROR(CheckLayout(header, data));
  return header;
}

// Maps tensor names to shard files. `bytes`: a model.safetensors.index.json.
absl::StatusOr<std::map<std::string, std::string>> ParseSafetensorsIndex(
    absl::string_view bytes) {
  if (bytes.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError("is too large for an index");
  }
  CAPSTAN_ASSIGN_OR_RETURN(const Json json, StrictParse(bytes, 8));
  if (!json.contains("weight_map") || !json["weight_map"].is_object()) {
    return absl::InvalidArgumentError("has no weight_map");
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, shard] : json["weight_map"].items()) {
    const std::string file = shard.is_string() ? shard.get<std::string>() : "";
    // A shard is in its index's folder: a path could reach any file.
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of("/\\\0", 0, 3) != std::string::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("weight_map of tensor '", name,
                       "' must be a plain file name, is ", shard.dump()));
    }
    weight_map[name] = file;
  }
  return weight_map;
}

// Pieces that are worth a call to the kernel.
constexpr int64_t kForgetBytes = 64 << 10;

constexpr MapOptions kMapping = {/*in_order=*/true, /*may_be_empty=*/true};

// Vectorised, which the build's usual optimisation level doesn't do.
template <typename T>
__attribute__((optimize("O3"))) void ConvertToFloat(const char* from,
                                                    int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    out[i] = static_cast<float>(value);
  }
}

class Reader final : public SafetensorsReader {
 public:
  // Adds the tensors of `path` that `wanted` names; all if it is null.
  absl::Status AddFile(const std::string& path,
                       const std::vector<std::string>* wanted) {
    CAPSTAN_ASSIGN_OR_RETURN(auto file, MappedFile::Open(path, kMapping));
    absl::StatusOr<SafetensorsHeader> header =
        ParseSafetensorsHeader(file->bytes());
    if (!header.ok()) return Annotate(header.status(), path);
    for (auto& [name, entry] : header->tensors) entry.file = path;
    if (files_.empty()) metadata_ = std::move(header->metadata);
    other_dtypes_.merge(header->other_dtypes);
    if (wanted == nullptr) {
      tensors_ = std::move(header->tensors);
    } else {
      for (const std::string& name : *wanted) {
        const auto found = header->tensors.find(name);
        if (found == header->tensors.end()) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, ": lacks tensor '", name,
                           "', which the index places in it"));
        }
        tensors_[name] = std::move(found->second);
      }
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  const std::map<std::string, TensorEntry>& tensors() const override {
    return tensors_;
  }
  const std::map<std::string, std::string>& metadata() const override {
    return metadata_;
  }

  absl::Status ReadFloats(const std::string& name, int64_t begin, int64_t count,
                          float* out) const override {
    const auto found = tensors_.find(name);
    if (found == tensors_.end()) {
      return absl::NotFoundError(absl::StrCat("no tensor '", name, "'"));
    }
    const TensorEntry& entry = found->second;
    if (begin < 0 || count < 0 || begin > entry.numel ||
        count > entry.numel - begin) {
      return absl::OutOfRangeError(absl::StrFormat(
          "%s: tensor '%s' has %d elements; %d from element %d were asked for",
          entry.file, name, entry.numel, count, begin));
    }
    switch (entry.dtype) {
      case c10::ScalarType::Float:
        // An empty `out` may be null.
        if (count > 0) std::memcpy(out, entry.data + 4 * begin, 4 * count);
        break;
      case c10::ScalarType::BFloat16:
        ConvertToFloat<c10::BFloat16>(entry.data + 2 * begin, count, out);
        break;
      case c10::ScalarType::Half:
        ConvertToFloat<c10::Half>(entry.data + 2 * begin, count, out);
        break;
      case c10::ScalarType::Double:
        ConvertToFloat<double>(entry.data + 8 * begin, count, out);
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat(entry.file, ": tensor '", name, "' is ",
                         DtypeName(name), "; want F32, F16, BF16 or F64"));
    }
    // What was read lives elsewhere now: at the end of loading all of it would
    // count twice.
    const int64_t size = static_cast<int64_t>(c10::elementSize(entry.dtype));
    if (count * size >= kForgetBytes) {
      ForgetMapped(entry.data + begin * size, count * size);
    }
    const auto file = std::find_if(
        files_.begin(), files_.end(),
        [&entry](const auto& f) { return f->path() == entry.file; });
    return (*file)->Check();
  }

  std::string DtypeName(const std::string& name) const override {
    const auto found = other_dtypes_.find(name);
    return found == other_dtypes_.end() ? SafetensorsReader::DtypeName(name)
                                        : found->second;
  }

  void ExpectRepeatedReads() const override {
    for (const auto& file : files_) file->ExpectRepeatedReads();
  }

 private:
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::map<std::string, TensorEntry> tensors_;
  std::map<std::string, std::string> metadata_;
  std::map<std::string, std::string> other_dtypes_;  // by tensor
};

absl::Status OpenSharded(const std::string& folder, const std::string& index,
                         Reader* reader) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto index_file,
                           MappedFile::Open(index, kMapping));
  const auto weight_map = ParseSafetensorsIndex(index_file->bytes());
  if (!weight_map.ok()) return Annotate(weight_map.status(), index);
  std::map<std::string, std::vector<std::string>> by_shard;
  for (const auto& [name, shard] : *weight_map) by_shard[shard].push_back(name);
  for (const auto& [shard, names] : by_shard) {
    const absl::Status status = reader->AddFile(folder + "/" + shard, &names);
    if (absl::IsNotFound(status)) {
      return absl::NotFoundError(absl::StrCat(
          folder, "/", shard, " is missing; ", index, " names it"));
    }
    CAPSTAN_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

// The end of an error about `path`: if it is a file of PyTorch's, or a folder
// with one, the command that makes safetensors of it, else "".
std::string ConvertHint(const std::string& path) {
  std::string output = path;
  bool is_torch = PathExists(path + "/pytorch_model.bin") ||
                  PathExists(path + "/pytorch_model.bin.index.json");
  for (const char* ending : {".bin", ".pt", ".pth"}) {
    if (!absl::EndsWith(path, ending) || !IsRegularFile(path)) continue;
    output.resize(path.size() - std::strlen(ending));
    is_torch = true;
  }
  if (!is_torch) return "";
  return absl::StrCat(
      "; its weights are in PyTorch's format: `trainer convert ", path,
      " --output=", output, "-safetensors` makes a folder to name instead");
}

}  // namespace

SafetensorsReader::~SafetensorsReader() = default;

std::string SafetensorsReader::DtypeName(const std::string& name) const {
  return SafetensorsDtypeName(tensors().at(name).dtype)
      .value_or("of another type");
}

absl::StatusOr<std::unique_ptr<SafetensorsReader>> SafetensorsReader::Open(
    const std::string& path) {
  auto reader = std::make_unique<Reader>();
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return absl::ErrnoToStatus(errno, path);
  const std::string hint = ConvertHint(path);
  if (!S_ISDIR(info.st_mode)) {
    const absl::Status status = reader->AddFile(path, nullptr);
    if (status.ok()) return reader;
    return WithMessage(status, absl::StrCat(status.message(), hint));
  }
  const std::string single = path + "/model.safetensors";
  const std::string index = path + "/model.safetensors.index.json";
  if (stat(single.c_str(), &info) == 0) {
    CAPSTAN_RETURN_IF_ERROR(reader->AddFile(single, nullptr));
  } else if (stat(index.c_str(), &info) == 0) {
    CAPSTAN_RETURN_IF_ERROR(OpenSharded(path, index, reader.get()));
  } else {
    return absl::NotFoundError(
        absl::StrCat(path,
                     " has neither model.safetensors nor "
                     "model.safetensors.index.json",
                     hint));
  }
  return reader;
}

}  // namespace capstan
