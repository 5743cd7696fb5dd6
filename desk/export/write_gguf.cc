// SPDX-License-Identifier: Apache-2.0
#include "desk/export/write_gguf.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/files.h"
#include "base/scratch_folder.h"
#include "base/status.h"
#include "desk/export/gguf_file.h"
#include "desk/export/gguf_types.h"
#include "desk/export/llama_tokenizer.h"
#include "desk/init/undo.h"

namespace capstan {
namespace {

// Values in memory at a time.
constexpr int64_t kPieceValues = int64_t{4} << 20;

struct FileType {
  const char* name;
  uint32_t number;  // llama.cpp's
  GgufType type;    // of most matrices
};

constexpr FileType kFileTypes[] = {
    {"F32", 0, GgufType::kF32},      {"F16", 1, GgufType::kF16},
    {"BF16", 32, GgufType::kBF16},   {"Q8_0", 7, GgufType::kQ8_0},
    {"Q6_K", 18, GgufType::kQ6_K},   {"Q5_K_M", 17, GgufType::kQ5_K},
    {"Q4_K_M", 15, GgufType::kQ4_K}, {"Q4_0", 2, GgufType::kQ4_0},
};

const FileType& FileTypeOf(const std::string& name) {
  return *std::find_if(std::begin(kFileTypes), std::end(kFileTypes),
                       [&](const FileType& type) { return type.name == name; });
}

// The type that takes the place of one whose blocks rows aren't made of.
GgufType Fitting(GgufType type, int64_t columns) {
  if (columns % GgufBlock(type) == 0) return type;
  if (type == GgufType::kQ4_K) type = GgufType::kQ5_0;
  if (type == GgufType::kQ5_K) type = GgufType::kQ5_1;
  if (type == GgufType::kQ6_K) type = GgufType::kQ8_0;
  return columns % GgufBlock(type) == 0 ? type : GgufType::kF16;
}

// Of a matrix, "blk.3.attn_v.weight".
GgufType TypeOfMatrix(const FileType& file, const std::string& name,
                      int64_t layers, bool is_head) {
  if (!IsQuantized(file.name)) return file.type;
  if (is_head) {
    return file.type == GgufType::kQ8_0 ? file.type : GgufType::kQ6_K;
  }
  if (!absl::EndsWith(file.name, "_M")) return file.type;
  if (absl::StrContains(name, "attn_qkv")) {
    return file.type == GgufType::kQ4_K ? GgufType::kQ5_K : GgufType::kQ6_K;
  }
  const std::vector<std::string> words = absl::StrSplit(name, '.');
  int64_t layer = 0;
  if (words.size() < 3 || !absl::SimpleAtoi(words[1], &layer)) return file.type;
  const bool more = layer < layers / 8 || layer >= 7 * layers / 8 ||
                    (layer - layers / 8) % 3 == 2;
  const bool matters =
      words[2] == "attn_v" || absl::StartsWith(words[2], "ffn_down");
  return more && matters ? GgufType::kQ6_K : file.type;
}

void ChooseTypes(const FileType& file, LlamaModel* model) {
  int64_t layers = 0;
  bool has_head = false;
  for (const LlamaTensor& tensor : model->tensors) {
    layers += absl::EndsWith(tensor.gguf.name, ".ffn_down.weight") ||
              absl::EndsWith(tensor.gguf.name, ".ffn_down_exps.weight");
    has_head = has_head || tensor.gguf.name == "output.weight";
  }
  const std::string head = has_head ? "output.weight" : "token_embd.weight";
  for (LlamaTensor& tensor : model->tensors) {
    const std::string& name = tensor.gguf.name;
    // A router is small, and decides much.
    if (tensor.gguf.shape.size() < 2 ||
        absl::StrContains(name, "ffn_gate_inp")) {
      continue;
    }
    tensor.gguf.type = Fitting(TypeOfMatrix(file, name, layers, name == head),
                               tensor.gguf.shape.back());
  }
}

// Writes the values of rows [first, first + count) to `out`.
absl::Status ReadRows(const Model& model, const LlamaTensor& tensor,
                      int64_t first, int64_t count, float* out) {
  const int64_t columns = tensor.columns();
  if (tensor.parameters.empty()) {
    std::copy_n(tensor.values.data() + first * columns, count * columns, out);
    return absl::OkStatus();
  }
  absl::Status status;
  std::mutex mutex;
  const int64_t grain = std::max<int64_t>(1, (1 << 16) / columns);
  at::parallel_for(0, count, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const LlamaTensor::Row from = tensor.Source(first + i);
      float* const row = out + i * columns;
      absl::Status read = model.InitialValue(from.parameter, /*seed=*/0,
                                             from.row * columns, columns, row);
      for (int64_t c = 0; c < columns; ++c) row[c] += tensor.plus;
      if (read.ok()) continue;
      const std::lock_guard<std::mutex> lock(mutex);
      status.Update(std::move(read));
    }
  });
  return status;
}

// Calls use(first, count) for pieces of a tensor's rows, in their order. Each
// piece is whole blocks.
template <typename Use>
absl::Status ForEachPiece(const LlamaTensor& tensor, const Use& use) {
  const int64_t rows = tensor.rows();
  const int64_t most = std::max<int64_t>(1, kPieceValues / tensor.columns());
  for (int64_t first = 0; first < rows; first += most) {
    CAPSTAN_RETURN_IF_ERROR(use(first, std::min(most, rows - first)));
  }
  return absl::OkStatus();
}

// Calls use(begin, end) for parts of `values` values that are whole blocks, in
// parallel.
template <typename Use>
void ForEachPart(GgufType type, int64_t values, const Use& use) {
  const int64_t block = GgufBlock(type);
  at::parallel_for(
      0, values / block, (1 << 15) / block,
      [&](int64_t begin, int64_t end) { use(begin * block, end * block); });
}

absl::Status WriteTensor(const Model& model, const LlamaTensor& tensor,
                         GgufWriter* writer) {
  const GgufType type = tensor.gguf.type;
  std::vector<float> values;
  std::string bytes;
  return ForEachPiece(tensor, [&](int64_t first, int64_t count) {
    values.resize(count * tensor.columns());
    CAPSTAN_RETURN_IF_ERROR(
        ReadRows(model, tensor, first, count, values.data()));
    const auto size = static_cast<int64_t>(values.size());
    bytes.resize(GgufBytes(type, size));
    ForEachPart(type, size, [&](int64_t begin, int64_t end) {
      ToGguf(type, values.data() + begin, end - begin,
             &bytes[0] + GgufBytes(type, begin));
    });
    return writer->Append(bytes);
  });
}

// Compares a tensor, and sets its rows of `weights`, unless that is empty.
absl::StatusOr<double> ReadTensor(const Model& model, const LlamaTensor& tensor,
                                  const char* data,
                                  std::vector<at::Tensor>* weights) {
  const GgufType type = tensor.gguf.type;
  const int64_t columns = tensor.columns(), block = GgufBlock(type);
  double worst = 0.0;
  std::mutex mutex;
  std::vector<float> wanted, got;
  CAPSTAN_RETURN_IF_ERROR(
      ForEachPiece(tensor, [&](int64_t first, int64_t count) -> absl::Status {
        wanted.resize(count * columns);
        got.resize(wanted.size());
        CAPSTAN_RETURN_IF_ERROR(
            ReadRows(model, tensor, first, count, wanted.data()));
        const char* const bytes = data + GgufBytes(type, first * columns);
        ForEachPart(type, count * columns, [&](int64_t begin, int64_t end) {
          FromGguf(type, bytes + GgufBytes(type, begin), end - begin,
                   got.data() + begin);
          double most = 0.0;
          for (int64_t i = begin; i < end; i += block) {
            most = std::max(most, GgufError(type, &wanted[i], &got[i]));
          }
          const std::lock_guard<std::mutex> lock(mutex);
          worst = std::max(worst, most);
        });
        if (weights->empty() || tensor.parameters.empty()) {
          return absl::OkStatus();
        }
        for (int64_t i = 0; i < count; ++i) {
          const LlamaTensor::Row to = tensor.Source(first + i);
          float* const row =
              (*weights)[to.parameter].mutable_data_ptr<float>() +
              to.row * columns;
          for (int64_t c = 0; c < columns; ++c) {
            row[c] = got[i * columns + c] - tensor.plus;
          }
        }
        return absl::OkStatus();
      }));
  return worst;
}

}  // namespace

const std::vector<std::string>& GgufFileTypes() {
  static const auto* const names = [] {
    auto* all = new std::vector<std::string>;
    for (const FileType& type : kFileTypes) all->emplace_back(type.name);
    return all;
  }();
  return *names;
}

bool IsQuantized(const std::string& file_type) {
  return absl::StartsWith(file_type, "Q");
}

absl::StatusOr<LlamaModel> WriteGguf(const Model& model,
                                     const Tokenizer& tokenizer,
                                     const GgufExport& request,
                                     const std::string& path) {
  const ScratchFolder scratch;
  CAPSTAN_RETURN_IF_ERROR(scratch.status());
  const init::Undo remove([&] { RemoveTree(scratch.path()).IgnoreError(); });
  CAPSTAN_RETURN_IF_ERROR(model.SaveConfig(scratch.path(), at::kFloat));
  CAPSTAN_RETURN_IF_ERROR(tokenizer.Save(scratch.path()));
  CAPSTAN_ASSIGN_OR_RETURN(LlamaModel llama,
                           DescribeForLlama(model, scratch.path()));
  CAPSTAN_ASSIGN_OR_RETURN(GgufValues tokens,
                           TokenizerValues(scratch.path(), llama.vocabulary,
                                           request.pre, &llama.notes));
  const FileType& type = FileTypeOf(request.type);
  ChooseTypes(type, &llama);
  GgufValues& values = llama.values;
  values.emplace_back("general.type", std::string("model"));
  values.emplace_back("general.name", request.name);
  values.emplace_back("general.file_type", type.number);
  values.emplace_back("general.quantization_version", uint32_t{2});
  std::move(tokens.begin(), tokens.end(), std::back_inserter(values));
  std::vector<GgufTensor> tensors;
  for (const LlamaTensor& tensor : llama.tensors) {
    tensors.push_back(tensor.gguf);
  }
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufWriter> writer,
                           GgufWriter::Create(path, values, tensors));
  for (const LlamaTensor& tensor : llama.tensors) {
    CAPSTAN_RETURN_IF_ERROR(WriteTensor(model, tensor, writer.get()));
  }
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  CAPSTAN_RETURN_IF_ERROR(writer->Close());
  return llama;
}

absl::StatusOr<GgufReading> ReadGgufBack(const std::string& path,
                                         const Model& model,
                                         const LlamaModel& written,
                                         bool keep_weights) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::unique_ptr<GgufReader> reader,
                           GgufReader::Open(path));
  if (reader->values() != written.values ||
      reader->tensors().size() != written.tensors.size()) {
    return absl::DataLossError(
        absl::StrCat(path, " doesn't hold the values that were written"));
  }
  GgufReading reading;
  if (keep_weights) {
    for (const ParameterSpec& spec : model.parameters()) {
      reading.weights.push_back(at::empty(spec.shape, at::kFloat));
    }
  }
  for (const LlamaTensor& tensor : written.tensors) {
    const std::string& name = tensor.gguf.name;
    const auto found = reader->tensors().find(name);
    if (found == reader->tensors().end() ||
        found->second.tensor.shape != tensor.gguf.shape ||
        found->second.tensor.type != tensor.gguf.type) {
      return absl::DataLossError(
          absl::StrCat(path, " doesn't hold ", name, " as it was written"));
    }
    CAPSTAN_ASSIGN_OR_RETURN(
        const double error,
        ReadTensor(model, tensor, found->second.data, &reading.weights));
    if (!(error <= 1.0)) {
      return absl::DataLossError(absl::StrCat(
          path, ": ", name, " differs from the model's by more than ",
          GgufTypeName(tensor.gguf.type),
          " allows: are there values that aren't finite, or above 65504, which "
          "--type=BF16 keeps?"));
    }
    reading.error = std::max(reading.error, error);
    ++reading.types[std::string(GgufTypeName(tensor.gguf.type))];
  }
  CAPSTAN_RETURN_IF_ERROR(reader->Check());
  CAPSTAN_RETURN_IF_ERROR(MappedFile::CheckAll());
  return reading;
}

}  // namespace capstan
