// SPDX-License-Identifier: Apache-2.0
#include "desk/convert/torch_file.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/base/internal/endian.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace capstan {
namespace {

using Kind = PickleValue::Kind;

// More than any tensor of PyTorch's has.
constexpr size_t kMostDimensions = 64;

// The globals that pickles may name. What isn't read as a tensor or container
// becomes an object that only says what it is.
constexpr absl::string_view kAllowed[] = {
    "__builtin__.complex",
    "__builtin__.set",
    "_codecs.encode",
    "builtins.bytearray",
    "builtins.complex",
    "builtins.dict",
    "builtins.frozenset",
    "builtins.int",
    "builtins.set",
    "collections.Counter",
    "collections.OrderedDict",
    "collections.defaultdict",
    "datetime.timedelta",
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
    "numpy._core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy.core.multiarray.scalar",
    "numpy.dtype",
    "numpy.ndarray",
    "pathlib.PosixPath",
    "pathlib._local.PosixPath",
    "torch.Size",
    "torch.Tensor",
    "torch._tensor._rebuild_from_type_v2",
    "torch._utils._rebuild_meta_tensor_no_storage",
    "torch._utils._rebuild_parameter",
    "torch._utils._rebuild_parameter_with_state",
    "torch._utils._rebuild_qtensor",
    "torch._utils._rebuild_sparse_tensor",
    "torch._utils._rebuild_tensor",
    "torch._utils._rebuild_tensor_v2",
    "torch._utils._rebuild_tensor_v3",
    "torch.device",
    "torch.distributed._shard.sharded_tensor.metadata.MEM_FORMAT_ENCODING",
    "torch.distributed._shard.sharded_tensor.metadata.TensorProperties",
    "torch.distributed.checkpoint.filesystem._StorageInfo",
    "torch.distributed.checkpoint.metadata.BytesStorageMetadata",
    "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
    "torch.distributed.checkpoint.metadata.Metadata",
    "torch.distributed.checkpoint.metadata.MetadataIndex",
    "torch.distributed.checkpoint.metadata.StorageMeta",
    "torch.distributed.checkpoint.metadata.TensorProperties",
    "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
    "torch.distributed.checkpoint.metadata._MEM_FORMAT_ENCODING",
    "torch.nn.parameter.Buffer",
    "torch.nn.parameter.Parameter",
    "torch.per_channel_affine",
    "torch.per_tensor_affine",
    "torch.serialization._get_layout",
    "torch.storage.TypedStorage",
    "torch.storage.UntypedStorage",
};

// PyTorch's names of dtypes and of the storages that have them.
struct NamedDtype {
  absl::string_view dtype;
  absl::string_view storage;  // "": only untyped ones do
  c10::ScalarType type;       // Undefined: safetensors has none
  int64_t bytes;              // of an element
};

constexpr NamedDtype kDtypes[] = {
    {"float32", "FloatStorage", c10::ScalarType::Float, 4},
    {"float64", "DoubleStorage", c10::ScalarType::Double, 8},
    {"float16", "HalfStorage", c10::ScalarType::Half, 2},
    {"bfloat16", "BFloat16Storage", c10::ScalarType::BFloat16, 2},
    {"int64", "LongStorage", c10::ScalarType::Long, 8},
    {"int32", "IntStorage", c10::ScalarType::Int, 4},
    {"int16", "ShortStorage", c10::ScalarType::Short, 2},
    {"int8", "CharStorage", c10::ScalarType::Char, 1},
    {"uint8", "ByteStorage", c10::ScalarType::Byte, 1},
    {"bool", "BoolStorage", c10::ScalarType::Bool, 1},
    {"uint16", "", c10::ScalarType::UInt16, 2},
    {"uint32", "", c10::ScalarType::UInt32, 4},
    {"uint64", "", c10::ScalarType::UInt64, 8},
    {"float8_e4m3fn", "", c10::ScalarType::Float8_e4m3fn, 1},
    {"float8_e5m2", "", c10::ScalarType::Float8_e5m2, 1},
    {"float8_e4m3fnuz", "", c10::ScalarType::Undefined, 1},
    {"float8_e5m2fnuz", "", c10::ScalarType::Undefined, 1},
    {"float8_e8m0fnu", "", c10::ScalarType::Undefined, 1},
    {"complex64", "ComplexFloatStorage", c10::ScalarType::Undefined, 8},
    {"complex128", "ComplexDoubleStorage", c10::ScalarType::Undefined, 16},
    {"qint8", "QInt8Storage", c10::ScalarType::Undefined, 1},
    {"quint8", "QUInt8Storage", c10::ScalarType::Undefined, 1},
    {"qint32", "QInt32Storage", c10::ScalarType::Undefined, 4},
};

constexpr absl::string_view kTorch = "torch.";

// The row of a global that names a dtype or a storage; null: none does.
const NamedDtype* FindDtype(absl::string_view global) {
  if (!absl::ConsumePrefix(&global, kTorch)) return nullptr;
  const auto* const found = std::find_if(
      std::begin(kDtypes), std::end(kDtypes), [&](const NamedDtype& row) {
        return row.dtype == global ||
               (!row.storage.empty() && row.storage == global);
      });
  return found == std::end(kDtypes) ? nullptr : found;
}

bool IsAllowed(absl::string_view global) {
  return std::binary_search(std::begin(kAllowed), std::end(kAllowed), global) ||
         FindDtype(global) != nullptr;
}

absl::Status Wrong(absl::string_view how) {
  return absl::InvalidArgumentError(
      absl::StrCat("has a tensor that is damaged: ", how));
}

absl::Status BigEndian() {
  return absl::UnimplementedError(
      "was written on a big-endian machine: load and save it there as "
      "safetensors");
}

// The call under wrappers that are tensors, too: parameters, subclasses.
struct Rebuilt {
  absl::string_view function;
  const std::vector<const PickleValue*>* arguments = nullptr;
};

Rebuilt RebuiltBy(const PickleValue& value) {
  // Wrappers may contain themselves.
  constexpr int kMostWrappers = 8;
  const PickleValue* inner = &value;
  for (int i = 0; i < kMostWrappers && inner->is(Kind::kObject); ++i) {
    const auto& items = inner->items;
    if (inner->is_object("torch._tensor._rebuild_from_type_v2") &&
        items.size() >= 3 && items[0]->is(Kind::kGlobal) &&
        items[2]->is(Kind::kTuple)) {
      return {items[0]->text, &items[2]->items};
    }
    const bool wraps =
        absl::StartsWith(inner->text, "torch.nn.parameter.") ||
        absl::StartsWith(inner->text, "torch._utils._rebuild_parameter");
    if (!wraps) return {inner->text, &items};
    if (items.empty()) break;
    inner = items[0];
  }
  return {};
}

// From the arguments that all functions that rebuild a dense tensor have.
absl::StatusOr<TensorView> ViewOf(absl::string_view storage,
                                  c10::ScalarType dtype, int64_t offset,
                                  std::vector<int64_t> sizes,
                                  std::vector<int64_t> strides) {
  const auto size = static_cast<int64_t>(c10::elementSize(dtype));
  const auto held = static_cast<int64_t>(storage.size()) / size;
  const absl::optional<int64_t> numel = NumelOf(sizes);
  if (!numel.has_value() || sizes.size() != strides.size() || offset < 0) {
    return Wrong("its shape is impossible");
  }
  TensorView tensor;
  tensor.dtype = dtype;
  tensor.shape = sizes;
  if (*numel == 0) return tensor;
  int64_t last = offset;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t step = 0;
    if (strides[d] < 0 ||
        __builtin_mul_overflow(sizes[d] - 1, strides[d], &step) ||
        __builtin_add_overflow(last, step, &last)) {
      return Wrong("its strides are impossible");
    }
  }
  if (last >= held) {
    return Wrong(absl::StrCat("it reaches element ", last,
                              " of a storage that has ", held));
  }
  if (*numel > held) {
    return absl::UnimplementedError(
        "repeats its elements (a stride of 0): save a contiguous() copy");
  }
  tensor.pieces.push_back({storage.data() + offset * size, sizes,
                           std::move(strides), 0, RowMajorStrides(sizes)});
  return tensor;
}

}  // namespace

absl::StatusOr<std::unique_ptr<const Pickle>> ReadTorchPickle(
    absl::string_view bytes) {
  absl::StatusOr<std::unique_ptr<const Pickle>> pickle =
      Pickle::Read(bytes, IsAllowed);
  if (!absl::IsPermissionDenied(pickle.status())) return pickle;
  return absl::PermissionDeniedError(absl::StrCat(
      "its pickle wants Python's ", absl::CHexEscape(pickle.status().message()),
      ", which weights don't need; it was not run. If you trust the file, load "
      "it where it was made, and save what has tensors alone: "
      "torch.save(model.state_dict(), 'weights.pt')"));
}

absl::optional<c10::ScalarType> DtypeOf(const PickleValue& value) {
  const NamedDtype* const row =
      value.is(Kind::kGlobal) ? FindDtype(value.text) : nullptr;
  if (row == nullptr || row->type == c10::ScalarType::Undefined) {
    return absl::nullopt;
  }
  return row->type;
}

absl::optional<std::vector<int64_t>> SizesOf(const PickleValue& value) {
  const PickleValue* list = &value;
  if (value.is_object("torch.Size")) {
    if (value.items.size() != 1) return absl::nullopt;
    list = value.items[0];
  }
  if ((!list->is(Kind::kTuple) && !list->is(Kind::kList)) ||
      list->items.size() > kMostDimensions) {
    return absl::nullopt;
  }
  std::vector<int64_t> sizes;
  for (const PickleValue* const item : list->items) {
    if (!item->is(Kind::kInt)) return absl::nullopt;
    sizes.push_back(item->integer);
  }
  return sizes;
}

absl::StatusOr<std::unique_ptr<const TorchFile>> TorchFile::Open(
    absl::string_view bytes) {
  auto file = std::make_unique<TorchFile>();
  CAPSTAN_RETURN_IF_ERROR(LooksLikeZip(bytes) ? file->OpenZip(bytes)
                                              : file->OpenLegacy(bytes));
  return file;
}

absl::Status TorchFile::OpenZip(absl::string_view bytes) {
  CAPSTAN_ASSIGN_OR_RETURN(const auto entries, ZipEntries(bytes));
  constexpr absl::string_view kPickle = "/data.pkl";
  const auto found = std::find_if(
      entries.begin(), entries.end(),
      [&](const auto& entry) { return absl::EndsWith(entry.first, kPickle); });
  if (found == entries.end()) {
    return absl::InvalidArgumentError(
        "is a zip archive without a data.pkl that isn't compressed, so not one "
        "of torch.save's");
  }
  const std::string folder =
      found->first.substr(0, found->first.size() - kPickle.size() + 1);
  if (entries.count(folder + "constants.pkl") > 0) {
    return absl::InvalidArgumentError(
        "is a TorchScript program: load it by torch.jit.load, and save its "
        "state_dict()");
  }
  const auto order = entries.find(folder + "byteorder");
  if (order != entries.end() && order->second.bytes != "little") {
    return BigEndian();
  }
  const std::string data = folder + "data/";
  for (const auto& [name, entry] : entries) {
    absl::string_view key = name;
    if (absl::ConsumePrefix(&key, data)) storages_[std::string(key)] = entry;
  }
  CAPSTAN_RETURN_IF_ERROR(CheckZipEntry(found->first, found->second));
  CAPSTAN_ASSIGN_OR_RETURN(pickle_, ReadTorchPickle(found->second.bytes));
  return absl::OkStatus();
}

absl::Status TorchFile::OpenLegacy(absl::string_view bytes) {
  // A pickle of 0x1950a86a20f9469cfc6c.
  constexpr absl::string_view kMagic(
      "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.", 15);
  if (!absl::ConsumePrefix(&bytes, kMagic)) {
    return absl::InvalidArgumentError(
        "isn't a file of torch.save's: it begins otherwise");
  }
  std::unique_ptr<const Pickle> parts[4];  // version, system, object, keys
  for (auto& part : parts) {
    CAPSTAN_ASSIGN_OR_RETURN(part, ReadTorchPickle(bytes));
    bytes.remove_prefix(part->size());
  }
  const PickleValue& little = parts[1]->root().At("little_endian");
  if (little.is(Kind::kBool) && little.integer == 0) return BigEndian();
  pickle_ = std::move(parts[2]);
  return AddLegacyStorages(parts[3]->root(), bytes);
}

absl::Status TorchFile::AddLegacyStorages(const PickleValue& keys,
                                          absl::string_view bytes) {
  // The storages' types are only in the pickle of the tensors.
  std::map<absl::string_view, int64_t> sizes;  // of an element, by key
  pickle_->ForEachPersistent([&](const PickleValue& id) {
    if (id.items.size() < 3 || !id.items[2]->is(Kind::kText)) return;
    const NamedDtype* const row = FindDtype(id.items[1]->text);
    if (row != nullptr) sizes[id.items[2]->text] = row->bytes;
  });
  for (const PickleValue* const key : keys.items) {
    const auto size = sizes.find(key->text);
    if (bytes.size() < 8 || size == sizes.end()) {
      return absl::InvalidArgumentError(
          "is cut off before its storages, or no tensor uses one: copy it "
          "again");
    }
    const uint64_t numel = absl::little_endian::Load64(bytes.data());
    bytes.remove_prefix(8);
    if (numel > bytes.size() / size->second) {
      return absl::InvalidArgumentError(
          "is cut off within a storage: copy it again");
    }
    storages_[std::string(key->text)] = {bytes.substr(0, numel * size->second)};
    bytes.remove_prefix(numel * size->second);
  }
  return absl::OkStatus();
}

bool TorchFile::IsTensor(const PickleValue& value) {
  const Rebuilt rebuilt = RebuiltBy(value);
  return absl::StartsWith(rebuilt.function, "torch._utils._rebuild_");
}

absl::StatusOr<TensorView> TorchFile::Tensor(const PickleValue& value) const {
  const Rebuilt rebuilt = RebuiltBy(value);
  const bool untyped = rebuilt.function == "torch._utils._rebuild_tensor_v3";
  if (!untyped && rebuilt.function != "torch._utils._rebuild_tensor" &&
      rebuilt.function != "torch._utils._rebuild_tensor_v2") {
    return absl::UnimplementedError(
        "is sparse, quantised or without storage: save a dense copy");
  }
  const auto& arguments = *rebuilt.arguments;
  if (arguments.size() < (untyped ? 7 : 4) ||
      !arguments[0]->is(Kind::kPersistent) || !arguments[1]->is(Kind::kInt)) {
    return Wrong("it lacks what makes a tensor");
  }
  const auto& id = arguments[0]->items[0]->items;
  const auto sizes = SizesOf(*arguments[2]);
  const auto strides = SizesOf(*arguments[3]);
  if (id.size() < 5 || !id[2]->is(Kind::kText) || !sizes || !strides) {
    return Wrong("it lacks what makes a tensor");
  }
  // A view of a view: of files of 2017.
  if (id.size() > 5 && !id[5]->is(Kind::kNone)) {
    return absl::UnimplementedError(
        "is a view of a storage's view: save a clone() of it");
  }
  const PickleValue& type = untyped ? *arguments[6] : *id[1];
  const absl::optional<c10::ScalarType> dtype = DtypeOf(type);
  if (!dtype.has_value()) {
    const NamedDtype* const row = FindDtype(type.text);
    return absl::UnimplementedError(absl::StrCat(
        "is ",
        row == nullptr ? absl::CHexEscape(type.text) : std::string(row->dtype),
        ", which safetensors doesn't have"));
  }
  const auto storage = storages_.find(std::string(id[2]->text));
  if (storage == storages_.end()) {
    return Wrong(absl::StrCat("the file has no storage '",
                              absl::CHexEscape(id[2]->text), "'"));
  }
  CAPSTAN_RETURN_IF_ERROR(
      CheckZipEntry(absl::StrCat("data/", storage->first), storage->second));
  storage->second.crc32 = 0;
  return ViewOf(storage->second.bytes, *dtype, arguments[1]->integer, *sizes,
                *strides);
}

absl::optional<int64_t> TorchFile::Count(const PickleValue& value) const {
  if (value.is(Kind::kInt)) return value.integer;
  if (!IsTensor(value)) return absl::nullopt;
  const absl::StatusOr<TensorView> tensor = Tensor(value);
  return tensor.ok() ? tensor->Scalar() : absl::nullopt;
}

}  // namespace capstan
