// SPDX-License-Identifier: Apache-2.0
//
// DeepSpeed's ZeRO checkpoints: each rank keeps a part of flat float32 vectors,
// which are put together as DeepSpeed's utils/zero_to_fp32.py does.
#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"
#include "desk/convert/weight_source.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using Kind = PickleValue::Kind;

constexpr char kWeights[] = "";  // the kind of what isn't a moment
constexpr absl::string_view kOptimizerFile = "_optim_states.pt";
constexpr absl::string_view kMoments[] = {"exp_avg", "exp_avg_sq"};

// 1-D tensors, one behind the other.
using Flat = std::vector<TensorView>;

int64_t LengthOf(const Flat& flat) {
  int64_t length = 0;
  for (const TensorView& part : flat) length += part.numel();
  return length;
}

// Adds elements [begin, begin + length) of `flat` to the tensor, from its
// element `to` on. The caller has checked that they are there.
void AddRange(const Flat& flat, int64_t begin, int64_t length, int64_t to,
              TensorView* tensor) {
  for (const TensorView& part : flat) {
    const int64_t numel = part.numel();
    const int64_t taken = std::min(length, numel - begin);
    if (taken > 0) {
      const auto size = static_cast<int64_t>(c10::elementSize(part.dtype));
      tensor->pieces.push_back(
          {part.pieces[0].data + begin * size, {taken}, {1}, to, {1}});
      to += taken;
      length -= taken;
    }
    begin = std::max<int64_t>(0, begin - numel);
    if (length == 0) return;
  }
}

// A name and the shape of the whole, in the order of the flat vectors.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
};

absl::StatusOr<std::vector<Parameter>> ParametersIn(const PickleValue& dict) {
  std::vector<Parameter> parameters;
  if (!dict.is(Kind::kDict)) {
    return absl::InvalidArgumentError("param_shapes isn't a list of dicts");
  }
  for (const auto& [key, value] : dict.entries()) {
    const auto shape = SizesOf(value);
    const auto numel = shape ? NumelOf(*shape) : absl::nullopt;
    if (!numel.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "param_shapes has no shape for '", absl::CHexEscape(key.text), "'"));
    }
    parameters.push_back({std::string(key.text), *shape, *numel});
  }
  return parameters;
}

// The rank in zero_pp_rank_3_mp_rank_00_optim_states.pt; -1 if it has none.
int RankOf(const std::string& file) {
  const std::vector<std::string> parts = absl::StrSplit(file, "pp_rank_");
  int rank = -1;
  const bool named =
      parts.size() > 1 &&
      absl::SimpleAtoi(parts[1].substr(0, parts[1].find('_')), &rank);
  return named ? rank : -1;
}

// The first item of a value of that kind which has items, else the value.
const PickleValue& FirstOf(Kind kind, const PickleValue& value) {
  return value.is(kind) && !value.items.empty() ? *value.items[0] : value;
}

// What all ranks' files have.
class ZeroFolder {
 public:
  ZeroFolder(std::string folder, WeightSource* source)
      : folder_(std::move(folder)), source_(source) {}

  absl::Status Read() {
    CAPSTAN_RETURN_IF_ERROR(OpenRanks());
    CAPSTAN_ASSIGN_OR_RETURN(model_, OpenTorchFile(ModelFile(0), source_));
    CAPSTAN_RETURN_IF_ERROR(ReadFlats());
    CAPSTAN_RETURN_IF_ERROR(ReadShapes());
    for (const auto& [kind, flats] : flats_) {
      const absl::Status status =
          stage_ == 3 ? Gather3(kind, flats) : Gather2(kind, flats);
      if (!status.ok()) return Annotate(status, folder_);
    }
    CAPSTAN_RETURN_IF_ERROR(ReadFrozen());
    return ReadRest();
  }

 private:
  // The flat vectors of each rank, by group.
  using Flats = std::vector<Flat>;

  std::string ModelFile(size_t rank) const {
    return stage_ == 3 ? absl::StrCat(folder_, "/zero_pp_rank_", rank,
                                      "_mp_rank_00_model_states.pt")
                       : folder_ + "/mp_rank_00_model_states.pt";
  }

  // An optimizer's state of each group.
  using Groups = std::map<int64_t, const PickleValue*>;

  // The optimizers' files, by rank.
  absl::StatusOr<std::map<int, std::string>> RankFiles() const;
  absl::Status OpenRanks();
  Groups GroupsOf(size_t rank) const;
  absl::Status ReadFlats();
  absl::Status ReadSteps();
  absl::Status ReadMoments();
  absl::Status ReadShapes();
  absl::Status Gather2(const std::string& kind, const Flats& flats);
  absl::Status Gather3(const std::string& kind, const Flats& flats);
  absl::Status ReadFrozen();
  absl::Status ReadRest();
  void Add(const std::string& kind, const std::string& name,
           TensorView tensor) {
    if (kind == kWeights) {
      names_.insert(name);
      source_->weights.push_back({name, std::move(tensor)});
    } else {
      source_->moments[kind].emplace(name, std::move(tensor));
    }
  }

  const std::string folder_;
  WeightSource* const source_;
  int64_t stage_ = 0;
  std::vector<std::unique_ptr<const TorchFile>> ranks_;
  std::vector<const PickleValue*> optimizers_;  // their state, by rank
  std::unique_ptr<const TorchFile> model_;
  std::map<std::string, Flats> flats_;              // by kind
  std::vector<std::vector<Parameter>> parameters_;  // by group
  std::set<std::string> names_;                     // of weights
};

absl::StatusOr<std::map<int, std::string>> ZeroFolder::RankFiles() const {
  std::map<int, std::string> files;
  std::error_code error;
  for (fs::directory_iterator it(folder_, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (!absl::EndsWith(name, kOptimizerFile)) continue;
    if (!absl::StrContains(name, "mp_rank_00")) {
      return absl::UnimplementedError(absl::StrCat(
          folder_, ": ", name,
          " is of a model that was divided by tensor or pipeline parallelism: "
          "convert it by DeepSpeed's ds_to_universal.py"));
    }
    if (!files.emplace(RankOf(name), it->path().string()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(folder_, " has two files of the rank of ", name,
                       ": keep those of one run in it"));
    }
  }
  if (error) return WriteError(folder_, error.value());
  return files;
}

absl::Status ZeroFolder::OpenRanks() {
  CAPSTAN_ASSIGN_OR_RETURN(const auto files, RankFiles());
  for (const auto& [rank, path] : files) {
    if (rank != static_cast<int>(ranks_.size())) {
      return absl::NotFoundError(
          absl::StrCat(folder_, " has no *_pp_rank_", ranks_.size(), "_..",
                       kOptimizerFile, ": copy the files of all ranks"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(auto file, OpenTorchFile(path, source_));
    const PickleValue& state = file->root().At("optimizer_state_dict");
    const PickleValue& stage = state.At("zero_stage");
    const PickleValue& count = state.At("partition_count");
    if (stage.is(Kind::kNone) || count.is(Kind::kNone)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": isn't of ZeRO: it has no zero_stage"));
    }
    // An enum of one number.
    const int64_t own_stage =
        file->Count(FirstOf(Kind::kObject, stage)).value_or(0);
    if (rank > 0 && own_stage != stage_) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is of ZeRO stage ", own_stage, ", rank 0's of ",
                       stage_, ": copy the files of one run"));
    }
    stage_ = own_stage;
    const int64_t wanted = file->Count(FirstOf(Kind::kList, count)).value_or(0);
    if (wanted != static_cast<int64_t>(files.size())) {
      return absl::InvalidArgumentError(absl::StrCat(
          path, ": is of a run of ", wanted, " ranks, but ", folder_,
          " has the files of ", files.size(), ": copy those of all ranks"));
    }
    optimizers_.push_back(&state);
    ranks_.push_back(std::move(file));
  }
  if (stage_ < 1 || stage_ > 3) {
    return absl::UnimplementedError(
        absl::StrCat(folder_, ": no ZeRO stage is ", stage_));
  }
  source_->format =
      absl::StrCat("a DeepSpeed ZeRO-", stage_, " checkpoint of ",
                   ranks_.size(), ranks_.size() == 1 ? " rank" : " ranks");
  return absl::OkStatus();
}

// A flat vector's values.
absl::StatusOr<TensorView> FlatOf(const TorchFile& file,
                                  const PickleValue& value) {
  if (!TorchFile::IsTensor(value)) {
    return absl::InvalidArgumentError("has a flat vector that isn't a tensor");
  }
  CAPSTAN_ASSIGN_OR_RETURN(TensorView tensor, file.Tensor(value));
  if (tensor.shape.size() != 1 || tensor.dtype != c10::ScalarType::Float ||
      (tensor.numel() > 0 && tensor.contiguous() == nullptr)) {
    return absl::InvalidArgumentError("has a flat vector that isn't float32");
  }
  return tensor;
}

absl::StatusOr<std::vector<TensorView>> FlatsIn(const TorchFile& file,
                                                const PickleValue& list) {
  if (!list.is(Kind::kList)) {
    return absl::InvalidArgumentError("lacks its flat float32 vectors");
  }
  std::vector<TensorView> flats;
  for (const PickleValue* const item : list.items) {
    CAPSTAN_ASSIGN_OR_RETURN(TensorView tensor, FlatOf(file, *item));
    flats.push_back(std::move(tensor));
  }
  return flats;
}

absl::Status ZeroFolder::ReadFlats() {
  const char* const key =
      stage_ == 3 ? "fp32_flat_groups" : "single_partition_of_fp32_groups";
  Flats& flats = flats_[kWeights];
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    absl::StatusOr<Flat> groups =
        FlatsIn(*ranks_[rank], optimizers_[rank]->At(key));
    if (!groups.ok()) {
      return Annotate(groups.status(), absl::StrCat(folder_, ", rank ", rank));
    }
    if (rank > 0 && groups->size() != flats[0].size()) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder_, ": rank ", rank, " has other groups than rank 0"));
    }
    flats.push_back(*std::move(groups));
  }
  CAPSTAN_RETURN_IF_ERROR(ReadSteps());
  const absl::Status moments = ReadMoments();
  if (moments.ok()) return moments;
  for (const absl::string_view kind : kMoments) flats_.erase(std::string(kind));
  source_->updates.reset();
  source_->left_out.emplace_back("the optimizer's state",
                                 std::string(moments.message()));
  return absl::OkStatus();
}

ZeroFolder::Groups ZeroFolder::GroupsOf(size_t rank) const {
  const PickleValue& state = optimizers_[rank]->At(
      stage_ == 3 ? "optimizer_state_dict" : "base_optimizer_state");
  Groups groups;
  // With elastic checkpoints a list, else an optimizer's dict by group.
  for (size_t i = 0; state.is(Kind::kList) && i < state.items.size(); ++i) {
    groups[i] = state.items[i];
  }
  for (const auto& [group, value] : state.At("state").entries()) {
    if (group.is(Kind::kInt)) groups[group.integer] = &value;
  }
  return groups;
}

// Parts of other steps are other weights' parts.
absl::Status ZeroFolder::ReadSteps() {
  std::map<int64_t, int64_t> steps;  // by group
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (const auto& [group, state] : GroupsOf(rank)) {
      const absl::optional<int64_t> step =
          ranks_[rank]->Count(state->At("step"));
      if (!step.has_value()) continue;
      const int64_t first = steps.emplace(group, *step).first->second;
      if (*step != first) {
        return absl::InvalidArgumentError(
            absl::StrCat(folder_, ": rank ", rank, "'s file is of step ", *step,
                         ", an earlier rank's of step ", first,
                         ": copy the files of one checkpoint"));
      }
      source_->updates = step;
    }
  }
  return absl::OkStatus();
}

// The optimizer's moments are flat vectors like those of the weights.
absl::Status ZeroFolder::ReadMoments() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const TorchFile& file = *ranks_[rank];
    const Groups groups = GroupsOf(rank);
    const Flat& weights = flats_[kWeights][rank];
    for (const absl::string_view kind : kMoments) {
      Flat flats;
      for (size_t group = 0; group < weights.size(); ++group) {
        const auto found = groups.find(group);
        if (found == groups.end() || found->second->At(kind).is(Kind::kNone)) {
          return absl::NotFoundError(absl::StrCat("has no ", kind));
        }
        CAPSTAN_ASSIGN_OR_RETURN(TensorView tensor,
                                 FlatOf(file, found->second->At(kind)));
        flats.push_back(std::move(tensor));
      }
      flats_[std::string(kind)].push_back(std::move(flats));
    }
  }
  return absl::OkStatus();
}

absl::Status ZeroFolder::ReadShapes() {
  const PickleValue& shapes = model_->root().At("param_shapes");
  if (!shapes.is(Kind::kList) && !shapes.is(Kind::kDict)) {
    return absl::InvalidArgumentError(
        absl::StrCat(ModelFile(0), ": has no param_shapes"));
  }
  // One dict before there were groups.
  std::vector<const PickleValue*> dicts = {&shapes};
  if (shapes.is(Kind::kList)) dicts = shapes.items;
  for (const PickleValue* const dict : dicts) {
    absl::StatusOr<std::vector<Parameter>> group = ParametersIn(*dict);
    if (!group.ok()) return Annotate(group.status(), ModelFile(0));
    parameters_.push_back(*std::move(group));
  }
  return absl::OkStatus();
}

// Stages 1 and 2: a group's ranks one behind the other are its parameters one
// behind the other, and padding.
absl::Status ZeroFolder::Gather2(const std::string& kind, const Flats& flats) {
  if (flats[0].size() != parameters_.size()) {
    return absl::InvalidArgumentError("param_shapes has other groups");
  }
  for (size_t group = 0; group < parameters_.size(); ++group) {
    Flat whole;
    for (const Flat& rank : flats) whole.push_back(rank[group]);
    const int64_t length = LengthOf(whole);
    int64_t begin = 0;
    for (const Parameter& parameter : parameters_[group]) {
      if (parameter.numel > length - begin) {
        return absl::InvalidArgumentError(
            absl::StrCat("its flat vectors end within '", parameter.name, "'"));
      }
      TensorView tensor = {c10::ScalarType::Float, parameter.shape, {}};
      AddRange(whole, begin, parameter.numel, 0, &tensor);
      begin += parameter.numel;
      Add(kind, parameter.name, std::move(tensor));
    }
    // Padding is at most twice the ranks, and that of the division.
    const auto padding = static_cast<int64_t>(4 * ranks_.size());
    if (length - begin > padding) {
      return absl::InvalidArgumentError(absl::StrCat(
          "its flat vectors have ", length - begin,
          " elements more than its parameters: the files aren't of one run"));
    }
  }
  return absl::OkStatus();
}

// Stage 3: each rank has its part of each parameter, of ceil(numel / ranks).
absl::Status ZeroFolder::Gather3(const std::string& kind, const Flats& flats) {
  const auto ranks = static_cast<int64_t>(flats.size());
  int64_t begin = 0;
  for (const std::vector<Parameter>& group : parameters_) {
    for (const Parameter& parameter : group) {
      const int64_t part = (parameter.numel + ranks - 1) / ranks;
      TensorView tensor = {c10::ScalarType::Float, parameter.shape, {}};
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const int64_t taken =
            std::clamp<int64_t>(parameter.numel - rank * part, 0, part);
        if (begin + taken > LengthOf(flats[rank])) {
          return absl::InvalidArgumentError(
              absl::StrCat("rank ", rank, "'s flat vectors end within '",
                           parameter.name, "'"));
        }
        AddRange(flats[rank], begin, taken, rank * part, &tensor);
      }
      begin += part;
      Add(kind, parameter.name, std::move(tensor));
    }
  }
  return absl::OkStatus();
}

// Parameters that weren't trained: whole, or a part in each rank's file.
absl::Status ZeroFolder::ReadFrozen() {
  const PickleValue& shapes = model_->root().At("frozen_param_shapes");
  if (shapes.entries().empty()) return absl::OkStatus();
  absl::StatusOr<std::vector<Parameter>> frozen = ParametersIn(shapes);
  if (!frozen.ok()) return Annotate(frozen.status(), ModelFile(0));
  std::map<std::string, Flat> parts;
  const size_t files = stage_ == 3 ? ranks_.size() : 1;
  for (size_t rank = 0; rank < files; ++rank) {
    CAPSTAN_ASSIGN_OR_RETURN(const auto file,
                             OpenTorchFile(ModelFile(rank), source_));
    const PickleValue& fragments = file->root().At("frozen_param_fragments");
    for (const Parameter& parameter : *frozen) {
      const PickleValue& value = fragments.At(parameter.name);
      if (value.is(Kind::kNone)) {
        return absl::InvalidArgumentError(absl::StrCat(
            ModelFile(rank), ": has no part of '", parameter.name, "'"));
      }
      absl::StatusOr<TensorView> part = file->Tensor(value);
      if (!part.ok()) return Annotate(part.status(), ModelFile(rank));
      parts[parameter.name].push_back(*std::move(part));
    }
  }
  for (const Parameter& parameter : *frozen) {
    const Flat& flat = parts[parameter.name];
    TensorView tensor = {flat[0].dtype, parameter.shape, {}};
    const bool whole =
        std::all_of(flat.begin(), flat.end(), [&](const auto& p) {
          return p.dtype == tensor.dtype && (p.numel() == 0 || p.contiguous());
        });
    if (!whole || LengthOf(flat) < parameter.numel) {
      return absl::InvalidArgumentError(absl::StrCat(
          folder_, ": the parts of '", parameter.name, "' aren't the whole"));
    }
    AddRange(flat, 0, parameter.numel, 0, &tensor);
    Add(kWeights, parameter.name, std::move(tensor));
  }
  return absl::OkStatus();
}

// Buffers, and weights that are others'.
absl::Status ZeroFolder::ReadRest() {
  const PickleValue& root = model_->root();
  for (const PickleValue* const buffer : root.At("buffer_names").items) {
    const std::string name(buffer->text);
    const PickleValue& value = root.At("module").At(name);
    if (value.is(Kind::kNone) || names_.count(name) > 0) continue;
    absl::StatusOr<TensorView> tensor = model_->Tensor(value);
    if (!tensor.ok()) return Annotate(tensor.status(), ModelFile(0));
    Add(kWeights, name, *std::move(tensor));
  }
  for (const auto& [key, value] : root.At("shared_params").entries()) {
    const std::string alias(key.text);
    const absl::string_view name = value.text;
    const auto found = absl::c_find_if(
        source_->weights,
        [name](const NamedTensor& weight) { return weight.name == name; });
    if (found == source_->weights.end() || names_.count(alias) > 0) continue;
    Add(kWeights, alias, TensorView(found->tensor));
  }
  if (!source_->updates.has_value() && !source_->moments.empty()) {
    source_->updates = model_->Count(root.At("global_steps"));
  }
  return absl::OkStatus();
}

}  // namespace

bool IsZeroFolder(const std::string& folder) {
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (absl::EndsWith(it->path().filename().string(), kOptimizerFile)) {
      return true;
    }
  }
  return false;
}

absl::Status ReadZeroFolder(const std::string& folder, WeightSource* source) {
  return ZeroFolder(folder, source).Read();
}

}  // namespace capstan
