// SPDX-License-Identifier: Apache-2.0
#include "plugins/llada/masked_diffusion/noise.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "kernels/to_device.h"
// Last: its CHECK is the one to use.
#include <glog/logging.h>

namespace capstan::masked_diffusion {
namespace {

// A tensor of the batch on the host, contiguous, shaped like the batch's
// tokens; undefined if there is none.
at::Tensor TokensOnHost(const Batch& batch, const char* name,
                        at::IntArrayRef sizes) {
  const at::Tensor tensor = HostTensor(batch, name);
  if (!tensor.defined()) return tensor;
  if (tensor.sizes() != sizes) {
    throw std::invalid_argument(absl::StrCat(
        "the batch's ", name, " have another shape than its tokens"));
  }
  return tensor.contiguous();
}

// The end of a row in training: after its last target, or where it is
// truncated.
int64_t EndOfRow(const Layout& layout, int64_t row, bool behind_labels,
                 const NoiseKey& key, double random_length_ratio) {
  const char* const target = layout.is_target.data() + row * layout.length;
  int64_t end = layout.length;
  if (behind_labels) {
    while (end > 0 && target[end - 1] == 0) --end;
    // No targets, so nothing needs to be cut off.
    if (end == 0) end = layout.length;
  }
  const int64_t sample = layout.samples[row];
  if (Uniform(key.length, 0, sample) < random_length_ratio) {
    const double share = Uniform(key.length, 1, sample);
    const auto cut = static_cast<int64_t>(share * layout.length) + 1;
    end = std::min(end, std::min(cut, layout.length));
  }
  return end;
}

void AddDocument(int64_t row, int64_t begin, int64_t end, Layout* layout) {
  begin += row * layout->length;
  end += row * layout->length;
  const auto first = layout->is_target.begin();
  layout->documents.push_back(
      {begin, end, row, std::count(first + begin, first + end, 1)});
}

// A tensor of B * T values of T on the host.
template <typename T>
at::Tensor TensorOf(const std::vector<T>& values, const Layout& layout,
                    at::ScalarType dtype) {
  const at::Tensor tensor = at::empty({layout.batch, layout.length}, dtype);
  std::memcpy(tensor.mutable_data_ptr(), values.data(), tensor.nbytes());
  return tensor;
}

at::Tensor PositionsOf(const Layout& layout) {
  std::vector<int64_t> positions(layout.batch * layout.length);
  for (const Document& document : layout.documents) {
    for (int64_t i = document.begin; i < document.end; ++i) {
      positions[i] = i - document.begin;
    }
  }
  return TensorOf(positions, layout, at::kLong);
}

}  // namespace

double Uniform(uint64_t key, uint64_t low, uint64_t high) {
  const std::array<uint32_t, 4> bits = RandomBits(key, low, high);
  return static_cast<double>((uint64_t{bits[0]} << 32 | bits[1]) >> 11) *
         0x1p-53;
}

NoiseKey NoiseKey::ForTraining(uint64_t seed) {
  return {RandomKey(seed, "masked_diffusion.t"),
          RandomKey(seed, "masked_diffusion.mask"),
          RandomKey(seed, "masked_diffusion.length"), /*even_t=*/false};
}

NoiseKey NoiseKey::ForEvaluation() {
  return {RandomKey(0, "masked_diffusion.evaluation.t"),
          RandomKey(0, "masked_diffusion.evaluation.mask"),
          RandomKey(0, "masked_diffusion.evaluation.length"), /*even_t=*/true};
}

Layout LayoutOf(const Batch& batch, const NoiseKey& key,
                double random_length_ratio) {
  const at::Tensor& ids = RequiredTensor(batch, kInputIds);
  Layout layout;
  layout.batch = ids.size(0);
  layout.length = ids.size(1);
  const int64_t tokens = layout.batch * layout.length;
  const at::Tensor samples = HostTensor(batch, kSamplePosition);
  CHECK(samples.defined() && samples.numel() == layout.batch)
      << "the batch says of which samples it is";
  const int64_t* const sample = samples.const_data_ptr<int64_t>();
  layout.samples.assign(sample, sample + layout.batch);
  const at::Tensor labels = TokensOnHost(batch, kLabels, ids.sizes());
  layout.is_target.assign(tokens, 1);
  if (labels.defined()) {
    const int64_t* const label = labels.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < tokens; ++i) layout.is_target[i] = label[i] >= 0;
  }
  const at::Tensor positions = TokensOnHost(batch, kPositions, ids.sizes());
  layout.whole_rows = !positions.defined();
  for (int64_t row = 0; row < layout.batch; ++row) {
    const int64_t end =
        EndOfRow(layout, row, labels.defined() && layout.whole_rows, key,
                 random_length_ratio);
    const auto target = layout.is_target.begin() + row * layout.length;
    std::fill(target + end, target + layout.length, 0);
    int64_t begin = 0;
    if (positions.defined()) {
      const int64_t* const position =
          positions.const_data_ptr<int64_t>() + row * layout.length;
      for (int64_t i = 1; i < end; ++i) {
        if (position[i] != 0) continue;
        AddDocument(row, begin, i, &layout);
        begin = i;
      }
    }
    AddDocument(row, begin, end, &layout);
    if (end < layout.length) {
      AddDocument(row, end, layout.length, &layout);
    }
  }
  layout.whole_rows =
      static_cast<int64_t>(layout.documents.size()) == layout.batch;
  return layout;
}

Noise DrawNoise(const Layout& layout, const NoiseKey& key, double eps) {
  // Its multiples' fractions fill [0, 1) evenly (Weyl, 1916).
  constexpr double kGoldenRatio = 0.61803398874989484820;
  Noise noise;
  noise.hidden.assign(layout.is_target.size(), 0);
  for (const Document& document : layout.documents) {
    const int64_t row_begin = document.row * layout.length;
    const int64_t sample = layout.samples[document.row];
    const int64_t begin = document.begin - row_begin;
    double t = Uniform(key.t, begin, key.even_t ? 0 : sample);
    if (key.even_t) {
      t += static_cast<double>(sample) * kGoldenRatio;
      t -= std::floor(t);
    }
    const double p = (1.0 - eps) * t + eps;
    noise.p.push_back(p);
    if (document.targets == 0) continue;
    for (int64_t i = document.begin; i < document.end; ++i) {
      noise.hidden[i] = layout.is_target[i] != 0 &&
                        Uniform(key.mask, i - row_begin, sample) < p;
    }
  }
  return noise;
}

int64_t CountOf(const Layout& layout, const Noise& noise, Config::Loss loss) {
  if (loss == Config::MASKED_MEAN) {
    return std::count(noise.hidden.begin(), noise.hidden.end(), 1);
  }
  int64_t count = 0;
  for (const Document& document : layout.documents) {
    count += loss == Config::PRETRAIN ? document.targets
                                      : std::min<int64_t>(document.targets, 1);
  }
  return count;
}

HiddenBatch Hide(const Batch& batch, const Layout& layout, const Noise& noise,
                 Config::Loss loss, int64_t mask_token, bool host_targets) {
  const at::Tensor& ids = batch.at(kInputIds);
  const char* const target = batch.count(kLabels) > 0 ? kLabels : kInputIds;
  HiddenBatch made;
  const at::Tensor on_host = TensorOf(noise.hidden, layout, at::kBool);
  const at::Tensor hidden = kernels::ToDevice(on_host, ids.device());
  made.input.tokens = ids.masked_fill(hidden, mask_token);
  if (!layout.whole_rows) {
    made.input.positions = PositionsOf(layout);  // see TokenInput
  }
  made.targets.tokens =
      host_targets
          ? HostTensor(batch, target)
                .masked_fill(on_host.logical_not(), kIgnoredTarget)
          : batch.at(target).masked_fill(hidden.logical_not(), kIgnoredTarget);
  if (loss == Config::MASKED_MEAN) return made;
  std::vector<float> weights(noise.hidden.size(), 0.0f);
  for (size_t d = 0; d < layout.documents.size(); ++d) {
    const Document& document = layout.documents[d];
    if (document.targets == 0) continue;
    const double length =
        loss == Config::SFT ? static_cast<double>(document.targets) : 1.0;
    std::fill(weights.begin() + document.begin, weights.begin() + document.end,
              static_cast<float>(1.0 / (noise.p[d] * length)));
  }
  made.targets.weights = TensorOf(weights, layout, at::kFloat);
  if (!host_targets) {
    made.targets.weights =
        kernels::ToDevice(made.targets.weights, ids.device());
  }
  return made;
}

}  // namespace capstan::masked_diffusion
