// SPDX-License-Identifier: Apache-2.0
//
// Folders of torch.distributed.checkpoint: .metadata, a pickle, says where each
// chunk of each tensor is in which file (torch/distributed/checkpoint/metadata.
// py and filesystem.py). A chunk is what torch.save writes of a tensor.
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "desk/convert/weight_source.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr char kMetadata[] = "/.metadata";

// Where a chunk is stored.
struct Place {
  std::string file;
  int64_t offset = 0;
  int64_t length = 0;
};

// What a name stands for.
struct Role {
  std::string kind;  // "": a weight
  std::string name;  // of the weight
};

// Optimizers' states are named PREFIX.state.WEIGHT.KIND.
absl::optional<Role> OptimizerRole(absl::string_view name) {
  constexpr absl::string_view kState = "state.";
  const size_t inner = name.find(".state.");
  if (absl::StartsWith(name, kState)) {
    name.remove_prefix(kState.size());
  } else if (inner != absl::string_view::npos) {
    name.remove_prefix(inner + 1 + kState.size());
  } else {
    return absl::nullopt;
  }
  for (const char* kind : {"exp_avg", "exp_avg_sq", "step"}) {
    absl::string_view weight = name;
    if (absl::ConsumeSuffix(&weight, absl::StrCat(".", kind))) {
      return Role{kind, std::string(weight)};
    }
  }
  return absl::nullopt;
}

// Sizes of chunks that have elements, by where they begin in the tensor.
using Boxes = std::map<std::vector<int64_t>, std::vector<int64_t>>;

bool HaveCommonElements(const Boxes::value_type& a,
                        const Boxes::value_type& b) {
  for (size_t d = 0; d < a.first.size(); ++d) {
    if (a.first[d] + a.second[d] <= b.first[d] ||
        b.first[d] + b.second[d] <= a.first[d]) {
      return false;
    }
  }
  return true;
}

// The elements of all boxes; unset if two have some in common.
absl::optional<int64_t> ElementsOf(const Boxes& boxes) {
  int64_t elements = 0;
  for (auto box = boxes.begin(); box != boxes.end(); ++box) {
    elements += NumelOf(box->second).value_or(0);
    // Those that follow begin at later rows, or the same.
    for (auto other = std::next(box);
         other != boxes.end() &&
         other->first[0] < box->first[0] + box->second[0];
         ++other) {
      if (HaveCommonElements(*box, *other)) return absl::nullopt;
    }
  }
  return elements;
}

class DistributedFolder {
 public:
  DistributedFolder(std::string folder, std::string key, WeightSource* source)
      : folder_(std::move(folder)), key_(std::move(key)), source_(source) {}

  absl::Status Read();

 private:
  absl::Status ReadPlaces(const PickleValue& storage);
  void ReadDicts(const PickleValue& planner);
  // The name of the weight that the item `name` is; unset if it is none.
  absl::optional<std::string> WeightName(const std::string& name) const;
  absl::Status ReadItem(const std::string& name, const PickleValue& item);
  absl::StatusOr<TensorView> ReadTensor(const std::string& name,
                                        const PickleValue& item);
  absl::Status AddChunk(const std::string& name, const PickleValue& chunk,
                        TensorView* whole, Boxes* boxes);
  absl::StatusOr<absl::string_view> BytesAt(const Place& place);

  const std::string folder_;
  const std::string key_;
  WeightSource* const source_;
  std::unique_ptr<const Pickle> metadata_;
  // By name and offset.
  std::map<std::pair<std::string, std::vector<int64_t>>, Place> places_;
  // The keys of the dicts within the dict that was saved, by what is in them.
  // Names are all keys that lead to an item, with dots between.
  std::map<std::string, std::string> dicts_;
  std::map<std::string, std::shared_ptr<const MappedFile>> files_;
};

absl::Status DistributedFolder::Read() {
  const std::string path = folder_ + kMetadata;
  CAPSTAN_ASSIGN_OR_RETURN(const auto mapped, MappedFile::Open(path));
  absl::StatusOr<std::unique_ptr<const Pickle>> pickle =
      ReadTorchPickle(mapped->bytes());
  if (!pickle.ok()) return Annotate(pickle.status(), path);
  metadata_ = *std::move(pickle);
  const PickleValue& root = metadata_->root();
  const PickleValue& items = root.At("state_dict_metadata");
  const absl::Status places = ReadPlaces(root.At("storage_data"));
  if (!places.ok()) return Annotate(places, path);
  if (!items.is(Kind::kDict)) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": isn't of torch.distributed.checkpoint: it lists no tensors"));
  }
  ReadDicts(root.At("planner_data"));
  for (const auto& [key, item] : items.entries()) {
    const std::string name(key.text);
    const absl::Status read = ReadItem(name, item);
    if (!read.ok()) {
      return Annotate(
          read, absl::StrCat(folder_, ": '", absl::CHexEscape(name), "'"));
    }
  }
  source_->format =
      absl::StrCat("a torch.distributed.checkpoint folder of ", files_.size(),
                   files_.size() == 1 ? " file" : " files");
  return absl::OkStatus();
}

absl::Status DistributedFolder::ReadPlaces(const PickleValue& storage) {
  if (!storage.is(Kind::kDict)) {
    return absl::InvalidArgumentError("says of no tensor where it is");
  }
  for (const auto& [index, info] : storage.entries()) {
    if (!info.At("transform_descriptors").items.empty()) {
      return absl::UnimplementedError(
          "says that its files are compressed: save it without an extension");
    }
    // Objects that aren't tensors have no offset in a tensor.
    if (index.At("offset").is(Kind::kNone)) continue;
    const auto at = SizesOf(index.At("offset"));
    const PickleValue& offset = info.At("offset");
    const PickleValue& length = info.At("length");
    if (!at.has_value() || !offset.is(Kind::kInt) || !length.is(Kind::kInt)) {
      return absl::InvalidArgumentError("doesn't say where a tensor is");
    }
    places_[{std::string(index.At("fqn").text), *at}] = {
        std::string(info.At("relative_path").text), offset.integer,
        length.integer};
  }
  return absl::OkStatus();
}

void DistributedFolder::ReadDicts(const PickleValue& planner) {
  for (const auto& [name, keys] : planner.entries()) {
    if (keys.items.size() < 2) continue;
    dicts_[std::string(name.text)] = std::string(keys.items[0]->text);
  }
}

absl::optional<std::string> DistributedFolder::WeightName(
    const std::string& name) const {
  absl::string_view weight = name;
  const auto dict = dicts_.find(name);
  if (!key_.empty()) {
    if (!absl::ConsumePrefix(&weight, key_ + ".")) return absl::nullopt;
  } else if (dict != dicts_.end()) {
    absl::ConsumePrefix(&weight, dict->second + ".");
  }
  return std::string(weight);
}

absl::Status DistributedFolder::ReadItem(const std::string& name,
                                         const PickleValue& item) {
  const auto leave_out = [&](absl::string_view why) {
    source_->left_out.emplace_back(absl::CHexEscape(name), why);
    return absl::OkStatus();
  };
  if (item.At("chunks").is(Kind::kNone)) return leave_out("not a tensor");
  const absl::optional<Role> role = OptimizerRole(name);
  const absl::optional<std::string> weight = WeightName(name);
  if (!role.has_value() && !weight.has_value()) {
    return leave_out("not below --key");
  }
  absl::StatusOr<TensorView> tensor = ReadTensor(name, item);
  if (absl::IsUnimplemented(tensor.status())) {
    return leave_out(tensor.status().message());
  }
  CAPSTAN_RETURN_IF_ERROR(tensor.status());
  if (!role.has_value()) {
    source_->weights.push_back({*weight, *std::move(tensor)});
  } else if (role->kind == "step") {
    source_->updates = tensor->Scalar();
  } else {
    source_->moments[role->kind].emplace(role->name, *std::move(tensor));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> DistributedFolder::ReadTensor(
    const std::string& name, const PickleValue& item) {
  const auto shape = SizesOf(item.At("size"));
  if (!shape.has_value() || !NumelOf(*shape).has_value()) {
    return absl::InvalidArgumentError("has no shape");
  }
  TensorView whole = {c10::ScalarType::Undefined, *shape, {}};
  Boxes boxes;
  for (const PickleValue* const chunk : item.At("chunks").items) {
    CAPSTAN_RETURN_IF_ERROR(AddChunk(name, *chunk, &whole, &boxes));
  }
  // Chunks that overlap would leave others' places empty.
  const absl::optional<int64_t> held = ElementsOf(boxes);
  if (!held.has_value()) {
    return absl::InvalidArgumentError("has chunks that overlap");
  }
  if (*held != whole.numel() || whole.dtype == c10::ScalarType::Undefined) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has chunks of ", *held, " of its ", whole.numel(), " elements"));
  }
  return whole;
}

absl::Status DistributedFolder::AddChunk(const std::string& name,
                                         const PickleValue& chunk,
                                         TensorView* whole, Boxes* boxes) {
  const auto offsets = SizesOf(chunk.At("offsets"));
  const auto sizes = SizesOf(chunk.At("sizes"));
  const std::vector<int64_t>& shape = whole->shape;
  if (!offsets.has_value() || !sizes.has_value() ||
      offsets->size() != shape.size() || sizes->size() != shape.size()) {
    return absl::InvalidArgumentError("has a chunk without place");
  }
  for (size_t d = 0; d < shape.size(); ++d) {
    const int64_t at = (*offsets)[d], size = (*sizes)[d];
    if (at < 0 || size < 0 || at > shape[d] || size > shape[d] - at) {
      return absl::InvalidArgumentError("has a chunk that is outside of it");
    }
  }
  const auto place = places_.find({name, *offsets});
  if (place == places_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "has a chunk at ", ShapeText(*offsets), " that is in no file"));
  }
  CAPSTAN_ASSIGN_OR_RETURN(const absl::string_view bytes,
                           BytesAt(place->second));
  CAPSTAN_ASSIGN_OR_RETURN(const auto file, TorchFile::Open(bytes));
  CAPSTAN_ASSIGN_OR_RETURN(TensorView part, file->Tensor(file->root()));
  if (part.shape != *sizes ||
      (!whole->pieces.empty() && part.dtype != whole->dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("has a chunk of shape ", ShapeText(part.shape),
                     " where the metadata say ", ShapeText(*sizes)));
  }
  whole->dtype = part.dtype;
  if (part.numel() > 0) boxes->emplace(*offsets, *sizes);
  for (TensorPiece& piece : part.pieces) {
    piece.to_strides = RowMajorStrides(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      piece.to += (*offsets)[d] * piece.to_strides[d];
    }
    whole->pieces.push_back(std::move(piece));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::string_view> DistributedFolder::BytesAt(
    const Place& place) {
  if (place.file.empty() || fs::path(place.file).filename() != place.file ||
      place.file == "..") {
    return absl::InvalidArgumentError(
        absl::StrCat("is in '", absl::CHexEscape(place.file),
                     "', which isn't a file of the folder"));
  }
  std::shared_ptr<const MappedFile>& file = files_[place.file];
  if (file == nullptr) {
    CAPSTAN_ASSIGN_OR_RETURN(
        file, MappedFile::Open(absl::StrCat(folder_, "/", place.file)));
    source_->files.push_back(file);
  }
  const auto held = static_cast<int64_t>(file->bytes().size());
  if (place.offset < 0 || place.length < 0 || place.offset > held ||
      place.length > held - place.offset) {
    return absl::InvalidArgumentError(
        absl::StrCat("is beyond the end of ", place.file,
                     ", which is damaged or was cut off"));
  }
  return file->bytes().substr(place.offset, place.length);
}

}  // namespace

bool IsDistributedFolder(const std::string& folder) {
  return PathExists(folder + kMetadata);
}

absl::Status ReadDistributedFolder(const std::string& folder,
                                   const std::string& key,
                                   WeightSource* source) {
  return DistributedFolder(folder, key, source).Read();
}

}  // namespace capstan
