// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/dispatch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/sort.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>

namespace capstan::kernels::cuda {
namespace {

void Check(const char* error, const char* kernel) {
  TORCH_CHECK(error == nullptr, "the GPU kernel ", kernel,
              " can't run: ", error);
}

void* Stream(const CudaKernels& cuda, const at::Tensor& t) {
  return cuda.current_stream(t.get_device());
}

// The data of a matrix [rows, n] like x; null if it is undefined.
const void* Matrix(const at::Tensor& t, const at::Tensor& x, const char* name) {
  if (!t.defined()) return nullptr;
  TORCH_CHECK(t.sizes() == x.sizes() && t.scalar_type() == x.scalar_type() &&
                  t.device() == x.device() && t.is_contiguous(),
              name, " must be a contiguous matrix like x");
  return t.const_data_ptr();
}

at::Tensor Contiguous(const at::Tensor& t) {
  return t.defined() ? t.contiguous() : t;
}

void CheckWeight(const at::Tensor& weight, const at::Tensor& x) {
  TORCH_CHECK((x.dim() == 2 || x.dim() == 3) && weight.numel() == x.size(-1) &&
                  weight.scalar_type() == x.scalar_type() &&
                  weight.is_contiguous(),
              "the norm's weight must be [n], of x's dtype");
}

// x itself if its rows are [groups, heads, n] with dense groups, else a copy.
at::Tensor NormRows(const at::Tensor& x) {
  const bool grouped = x.dim() == 3 && x.stride(2) == 1 &&
                       (x.size(1) == 1 || x.stride(1) == x.size(2)) &&
                       x.stride(0) >= x.size(1) * x.size(2);
  return grouped ? x : x.contiguous();
}

// RmsNormArgs::heads and the stride that goes with it.
int64_t HeadsOf(const at::Tensor& x) {
  return x.dim() == 3 && !x.is_contiguous() ? x.size(1) : 0;
}
int64_t GroupStride(const at::Tensor& x) {
  return x.dim() == 3 ? x.stride(0) : 0;
}

// Normalises x with a given rstd, or writes it. `args` may have what is added.
at::Tensor Normalise(const CudaKernels& cuda, const at::Tensor& x,
                     const at::Tensor& weight, float* rstd, bool rstd_given,
                     double eps, RmsNormArgs args = {}) {
  CheckWeight(weight, x);
  args.n = x.size(-1);
  args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  at::Tensor y = at::empty({args.rows, args.n}, x.options());
  args.dtype = TypeOf(x);
  args.x = x.const_data_ptr();
  args.heads = HeadsOf(x);
  args.x_stride = args.heads > 0 ? GroupStride(x) : 0;
  args.weight = weight.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.rstd = rstd;
  args.rstd_given = rstd_given;
  args.eps = static_cast<float>(eps);
  Check(cuda.rms_norm(args, Stream(cuda, x)), "rms_norm");
  return y;
}

// Elements from a row of t [rows, n] to the next.
int64_t RowStride(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.dim() == 2 && (t.size(1) <= 1 || t.stride(1) == 1), name,
              " must be a matrix with dense rows");
  return t.size(0) <= 1 ? t.size(1) : t.stride(0);
}

// How SwiGLU's tensors lie: as one row if all are contiguous.
struct RowsOf {
  int64_t rows = 1, n = 0, stride = 0, d_stride = 0;
};
RowsOf SwiGluRows(const at::Tensor& gate, const at::Tensor& up,
                  const at::Tensor& d_gate, const at::Tensor& d_up) {
  if (gate.is_contiguous() && up.is_contiguous() && d_gate.is_contiguous() &&
      d_up.is_contiguous()) {
    return {1, gate.numel(), gate.numel(), gate.numel()};
  }
  const RowsOf rows = {gate.size(0), gate.size(1), RowStride(gate, "gate"),
                       RowStride(d_gate, "d_gate")};
  TORCH_CHECK(rows.stride == RowStride(up, "up") &&
                  rows.d_stride == RowStride(d_up, "d_up"),
              "rows of SwiGLU's gate and up must be equally far apart");
  return rows;
}

}  // namespace

DType TypeOf(const at::Tensor& t) {
  if (!t.defined()) return DType::kNone;
  switch (t.scalar_type()) {
    case at::kFloat:
      return DType::kFloat32;
    case at::kBFloat16:
      return DType::kBFloat16;
    case at::kHalf:
      return DType::kFloat16;
    default:
      return DType::kNone;
  }
}

const CudaKernels* For(const at::Tensor& x) {
  if (!x.is_cuda() || TypeOf(x) == DType::kNone) return nullptr;
  const CudaKernels* cuda = Cuda();
  return cuda != nullptr && cuda->capability(x.get_device()) >= kLeastCapability
             ? cuda
             : nullptr;
}

NormResult RmsNorm(const CudaKernels& cuda, const at::Tensor& x_any,
                   const at::Tensor& weight, double eps, bool plus_one) {
  const at::Tensor x = NormRows(x_any);
  CheckWeight(weight, x);
  const at::Tensor rstd =
      at::empty({x.numel() / std::max<int64_t>(1, x.size(-1))},
                x.options().dtype(at::kFloat));
  RmsNormArgs args = {};
  args.plus_one = plus_one;
  return {Normalise(cuda, x, weight, rstd.mutable_data_ptr<float>(),
                    /*rstd_given=*/false, eps, args),
          rstd};
}

NormResult AddRmsNorm(const CudaKernels& cuda, const at::Tensor& x_any,
                      const at::Tensor& add_any, const at::Tensor& weight,
                      double eps, at::Tensor& sum, bool plus_one,
                      const at::Tensor& again) {
  const at::Tensor x = x_any.contiguous(), add = add_any.contiguous();
  TORCH_CHECK(x.dim() == 2, "what is added is to a matrix");
  const at::Tensor rstd = at::empty({x.size(0)}, x.options().dtype(at::kFloat));
  RmsNormArgs args = {};
  args.plus_one = plus_one;
  args.add = Matrix(add, x, "what is added");
  args.sum = const_cast<void*>(Matrix(sum, x, "the sum"));
  args.again = const_cast<void*>(Matrix(again, x, "the sum's copy"));
  return {Normalise(cuda, x, weight, rstd.mutable_data_ptr<float>(),
                    /*rstd_given=*/false, eps, args),
          rstd};
}

at::Tensor RmsNormAgain(const CudaKernels& cuda, const at::Tensor& x,
                        const at::Tensor& weight, const at::Tensor& rstd,
                        bool plus_one) {
  RmsNormArgs args = {};
  args.plus_one = plus_one;
  return Normalise(cuda, NormRows(x), weight,
                   const_cast<float*>(rstd.const_data_ptr<float>()),
                   /*rstd_given=*/true, /*eps=*/0.0, args);
}

at::Tensor RmsNormBackward(const CudaKernels& cuda, const at::Tensor& dy_any,
                           const at::Tensor& x_any, const at::Tensor& weight,
                           const at::Tensor& rstd,
                           const at::Tensor& residual_any, NormGradients into,
                           bool plus_one) {
  const at::Tensor x = NormRows(x_any), dy = dy_any.contiguous();
  const at::Tensor residual = Contiguous(residual_any);
  CheckWeight(weight, x);
  if (!into.dx.defined()) into.dx = at::empty(x.sizes(), x.options());
  const at::Tensor& dx = into.dx;
  const at::Tensor& dweight = into.dweight;
  RmsNormBackwardArgs args = {};
  args.n = x.size(-1);
  args.rows = args.n == 0 ? 0 : x.numel() / args.n;
  TORCH_CHECK(dy.numel() == x.numel() && dy.scalar_type() == x.scalar_type() &&
                  dy.device() == x.device(),
              "dy must be as many rows as x");
  TORCH_CHECK(dx.sizes() == x.sizes() && dx.scalar_type() == x.scalar_type() &&
                  dx.device() == x.device() && NormRows(dx).is_same(dx),
              "dx must be like x, and its rows dense");
  if (HeadsOf(x) > 0 || HeadsOf(dx) > 0) {
    TORCH_CHECK(!residual.defined(), "rows in groups have no residual");
    args.heads = x.size(1);
    args.x_stride = GroupStride(x);
    args.dx_stride = GroupStride(dx);
  }
  args.dtype = TypeOf(x);
  args.plus_one = plus_one;
  args.dy = dy.const_data_ptr();
  args.x = x.const_data_ptr();
  args.weight = weight.const_data_ptr();
  args.rstd = rstd.const_data_ptr<float>();
  args.residual = Matrix(residual, x, "residual");
  args.dx = dx.mutable_data_ptr();
  at::Tensor partial;
  if (dweight.defined()) {
    TORCH_CHECK(dweight.numel() == args.n && dweight.is_contiguous() &&
                    dweight.device() == x.device(),
                "the gradient of the norm's weight must be [n]");
    partial = at::empty({RmsNormPartials(args.rows, args.n), args.n},
                        x.options().dtype(at::kFloat));
    args.partial = partial.mutable_data_ptr<float>();
    args.dweight_dtype = TypeOf(dweight);
    args.dweight = dweight.mutable_data_ptr();
    args.add_dweight = into.add;
  }
  Check(cuda.rms_norm_backward(args, Stream(cuda, x)), "rms_norm_backward");
  return dx;
}

void Rope(const CudaKernels& cuda, const at::Tensor& table_any, double sign,
          const at::Tensor& x, at::Tensor& y) {
  const at::Tensor table = table_any.contiguous();
  RopeArgs args = {};
  args.dtype = TypeOf(x);
  args.table = table.const_data_ptr<float>();
  args.positions = table.size(0);
  args.head_dim = table.size(1);
  TORCH_CHECK(table.device() == x.device() && y.device() == x.device(),
              "rope's table must be on x's device");
  args.x_stride = RowStride(x, "rope's x");
  args.y_stride = RowStride(y, "rope's y");
  TORCH_CHECK(y.sizes() == x.sizes() && y.scalar_type() == x.scalar_type() &&
                  args.head_dim % 2 == 0 && x.size(1) % args.head_dim == 0,
              "rope's x must be [rows, heads * head_dim] with an even "
              "head_dim, and y like it");
  args.x = x.const_data_ptr();
  args.y = y.mutable_data_ptr();
  args.rows = x.size(0);
  args.heads = x.size(1) / args.head_dim;
  args.sign = static_cast<float>(sign);
  Check(cuda.rope(args, Stream(cuda, x)), "rope");
}

at::Tensor SwiGlu(const CudaKernels& cuda, const at::Tensor& gate,
                  const at::Tensor& up, bool gelu) {
  TORCH_CHECK(
      gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
      "SwiGLU's gate and up must be alike");
  at::Tensor out = at::empty(gate.sizes(), gate.options());
  const RowsOf lie = SwiGluRows(gate, up, out, out);
  SwiGluArgs args = {};
  args.gelu = gelu;
  args.dtype = TypeOf(gate);
  args.gate = gate.const_data_ptr();
  args.up = up.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.rows = lie.rows;
  args.n = lie.n;
  args.stride = lie.stride;
  Check(cuda.swiglu(args, Stream(cuda, gate)), "swiglu");
  return out;
}

void SwiGluBackward(const CudaKernels& cuda, const at::Tensor& gate,
                    const at::Tensor& up, at::Tensor& d_activation,
                    at::Tensor& d_gate, at::Tensor& d_up, bool gelu) {
  for (const at::Tensor& t : {up, d_activation, d_gate, d_up}) {
    TORCH_CHECK(
        t.sizes() == gate.sizes() && t.scalar_type() == gate.scalar_type(),
        "SwiGLU's tensors must be of one shape and dtype");
  }
  TORCH_CHECK(d_activation.is_contiguous(),
              "SwiGLU's d_activation must be contiguous");
  const RowsOf lie = SwiGluRows(gate, up, d_gate, d_up);
  SwiGluBackwardArgs args = {};
  args.gelu = gelu;
  args.dtype = TypeOf(gate);
  args.gate = gate.const_data_ptr();
  args.up = up.const_data_ptr();
  args.d_out = d_activation.mutable_data_ptr();
  args.d_gate = d_gate.mutable_data_ptr();
  args.d_up = d_up.mutable_data_ptr();
  args.rows = lie.rows;
  args.n = lie.n;
  args.stride = lie.stride;
  args.d_stride = lie.d_stride;
  Check(cuda.swiglu_backward(args, Stream(cuda, gate)), "swiglu_backward");
}

namespace {

// Of contiguous x and samples, without what is done to x.
DropoutArgs RandomArgs(const at::Tensor& x, const at::Tensor& samples,
                       uint64_t key, at::Tensor& out) {
  TORCH_CHECK(x.dim() == 2 && samples.numel() > 0 &&
                  x.size(0) % samples.numel() == 0 &&
                  samples.device() == x.device(),
              "dropout and noise need x [rows, n], and samples on its device "
              "that have as many rows each");
  DropoutArgs args = {};
  args.dtype = TypeOf(x);
  args.x = x.const_data_ptr();
  args.out = out.mutable_data_ptr();
  args.samples = samples.const_data_ptr<int64_t>();
  args.key = key;
  args.rows = x.size(0);
  args.n = x.size(1);
  args.length = args.rows / samples.numel();
  return args;
}

}  // namespace

at::Tensor Dropout(const CudaKernels& cuda, const at::Tensor& x_any,
                   const at::Tensor& samples_any, uint64_t key, double rate,
                   int64_t first) {
  const at::Tensor x = x_any.contiguous(), samples = samples_any.contiguous();
  at::Tensor out = at::empty_like(x);
  DropoutArgs args = RandomArgs(x, samples, key, out);
  args.first = first;
  args.dropped_below = static_cast<uint64_t>(std::ldexp(rate, 32));
  args.factor = static_cast<float>(1.0 / (1.0 - rate));
  Check(cuda.dropout(args, Stream(cuda, x)), "dropout");
  return out;
}

void AddNoise(const CudaKernels& cuda, const at::Tensor& samples_any,
              const at::Tensor& size_any, uint64_t key, int64_t first,
              at::Tensor& x) {
  const at::Tensor samples = samples_any.contiguous();
  const at::Tensor size = size_any.contiguous();
  TORCH_CHECK(x.is_contiguous() && size.scalar_type() == at::kFloat &&
                  size.numel() == samples.numel() &&
                  size.device() == x.device(),
              "noise needs contiguous x, and one float32 size for each sample");
  DropoutArgs args = RandomArgs(x, samples, key, x);
  args.noise = size.const_data_ptr<float>();
  args.first = first;
  Check(cuda.dropout(args, Stream(cuda, x)), "noise");
}

at::Tensor CrossEntropySum(const CudaKernels& cuda, at::Tensor& logits,
                           const at::Tensor& targets_any, bool gradient,
                           double factor, const at::Tensor& weights_any,
                           double smoothing) {
  const at::Tensor targets = targets_any.contiguous();
  const at::Tensor weights = Contiguous(weights_any);
  TORCH_CHECK(logits.dim() == 2 && logits.is_contiguous() &&
                  targets.numel() == logits.size(0) &&
                  targets.device() == logits.device(),
              "cross-entropy needs contiguous logits [rows, vocab] and targets "
              "[rows] on one device");
  TORCH_CHECK(!weights.defined() || (weights.scalar_type() == at::kFloat &&
                                     weights.numel() == targets.numel() &&
                                     weights.device() == logits.device()),
              "cross-entropy's weights must be [rows] float32");
  const auto floats = logits.options().dtype(at::kFloat);
  const at::Tensor losses = at::empty({logits.size(0)}, floats);
  at::Tensor sum = at::empty({}, floats);
  CrossEntropyArgs args = {};
  args.dtype = TypeOf(logits);
  args.logits = logits.mutable_data_ptr();
  args.targets = targets.const_data_ptr<int64_t>();
  args.weights = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
  args.gradient = gradient;
  args.factor = static_cast<float>(factor);
  args.smoothing = static_cast<float>(smoothing);
  args.losses = losses.mutable_data_ptr<float>();
  args.sum = sum.mutable_data_ptr<float>();
  args.rows = logits.size(0);
  args.vocab = logits.size(1);
  Check(cuda.cross_entropy(args, Stream(cuda, logits)), "cross_entropy");
  return sum;
}

void EmbeddingBackward(const CudaKernels& cuda, const at::Tensor& dy_any,
                       const at::Tensor& tokens, at::Tensor& d_weight) {
  const at::Tensor dy = dy_any.contiguous();
  TORCH_CHECK(dy.dim() == 2 && d_weight.dim() == 2 &&
                  dy.size(0) == tokens.numel() &&
                  dy.size(1) == d_weight.size(1) && d_weight.is_contiguous() &&
                  dy.device() == d_weight.device(),
              "the embedding's gradient needs dy [rows, hidden], tokens [rows] "
              "and a contiguous d_weight [vocab, hidden]");
  const auto [sorted, order] = at::sort(tokens.reshape({-1}), /*stable=*/true,
                                        /*dim=*/0, /*descending=*/false);
  EmbeddingBackwardArgs args = {};
  args.dtype = TypeOf(dy);
  args.dy = dy.const_data_ptr();
  args.tokens = sorted.const_data_ptr<int64_t>();
  args.order = order.const_data_ptr<int64_t>();
  args.weight_dtype = TypeOf(d_weight);
  args.d_weight = d_weight.mutable_data_ptr();
  args.rows = dy.size(0);
  args.hidden = dy.size(1);
  args.vocab = d_weight.size(0);
  Check(cuda.embedding_backward(args, Stream(cuda, dy)), "embedding_backward");
}

void DequantizeNf4(const CudaKernels& cuda, DequantizeNf4Args args,
                   at::Tensor& out) {
  TORCH_CHECK(out.is_contiguous(), "dequantisation writes contiguous tensors");
  args.dtype = TypeOf(out);
  args.out = out.mutable_data_ptr();
  args.n = out.numel();
  Check(cuda.dequantize_nf4(args, Stream(cuda, out)), "dequantize_nf4");
}

CastTo8Bits CastFp8(const CudaKernels& cuda, const at::Tensor& x_any,
                    at::ScalarType type, bool by_row, bool both, float most,
                    float least_amax) {
  constexpr int64_t kMultiple = 16;
  const bool turned = x_any.dim() == 2 && x_any.stride(1) != 1;
  const at::Tensor source = turned ? x_any.t() : x_any;
  const bool dense = source.dim() == 2 && source.stride(1) == 1 &&
                     source.stride(0) % kMultiple == 0;
  const at::Tensor x = dense ? source : source.contiguous();
  TORCH_CHECK(x.dim() == 2 && x.scalar_type() == at::kBFloat16 &&
                  x.size(1) % kMultiple == 0,
              "a cast to 8 bits is of a bfloat16 matrix with rows of a "
              "multiple of 16");
  TORCH_CHECK(!both || (turned && !by_row),
              "both of a cast's results are for dense columns and one scale");
  CastFp8Args args = {};
  args.x = x.const_data_ptr();
  args.rows = x.size(0);
  args.n = x.size(1);
  args.stride = args.rows == 1 ? args.n : x.stride(0);
  args.turned = turned;
  args.by_row = by_row;
  args.e5m2 = type == at::kFloat8_e5m2;
  args.most = most;
  args.least_amax = least_amax;
  args.width =
      turned ? (args.rows + kMultiple - 1) / kMultiple * kMultiple : args.n;
  args.partials = CastFp8Partials(args.rows);
  const int64_t rows = turned ? args.n : args.rows;
  const auto options = x.options().requires_grad(false);
  const CastTo8Bits made = {
      at::empty({rows, args.width}, options.dtype(type)),
      at::empty({by_row ? rows : 1, 1}, options.dtype(at::kFloat)),
      both ? at::empty(x.sizes(), options.dtype(type)) : at::Tensor()};
  const at::Tensor partial =
      at::empty({args.partials * (turned && by_row ? args.n : 1)},
                options.dtype(at::kInt));
  args.out = static_cast<uint8_t*>(made.values.mutable_data_ptr());
  if (both) args.also = static_cast<uint8_t*>(made.turned.mutable_data_ptr());
  args.scale = made.scale.mutable_data_ptr<float>();
  args.partial = partial.mutable_data_ptr<int32_t>();
  Check(cuda.cast_fp8(args, Stream(cuda, x)), "cast_fp8");
  return made;
}

ChoiceGroups GroupChoices(const CudaKernels& cuda, const at::Tensor& expert_any,
                          const at::Tensor& share_any, int64_t experts,
                          bool reversed, bool padded) {
  const at::Tensor expert = expert_any.contiguous();
  const at::Tensor share = share_any.contiguous();
  TORCH_CHECK(expert.dim() == 2 && expert.scalar_type() == at::kLong &&
                  share.sizes() == expert.sizes() &&
                  share.scalar_type() == at::kFloat &&
                  share.device() == expert.device(),
              "choices of experts must be [rows, top_k] int64, with shares in "
              "float32 on their device");
  const int64_t places = expert.numel() + (padded ? experts : 0);
  const auto numbers = expert.options(), floats = share.options();
  const ChoiceGroups made = {at::empty({places}, numbers),
                             at::empty({expert.numel()}, numbers),
                             at::empty({places}, floats),
                             at::empty({experts}, numbers.dtype(at::kInt)),
                             at::empty({experts}, floats)};
  GroupChoicesArgs args = {};
  args.expert = expert.const_data_ptr<int64_t>();
  args.share = share.const_data_ptr<float>();
  args.choices = expert.numel();
  args.experts = static_cast<int32_t>(experts);
  args.top_k = static_cast<int32_t>(expert.size(1));
  args.reversed = reversed;
  args.padded = padded;
  args.row = made.row.mutable_data_ptr<int64_t>();
  args.order = made.order.mutable_data_ptr<int64_t>();
  args.sorted_share = made.share.mutable_data_ptr<float>();
  args.ends = made.ends.mutable_data_ptr<int32_t>();
  args.chosen = made.chosen.mutable_data_ptr<float>();
  Check(cuda.group_choices(args, Stream(cuda, expert)), "group_choices");
  return made;
}

at::Tensor SumChosen(const CudaKernels& cuda, const at::Tensor& x_any,
                     const at::Tensor& order, int64_t top_k,
                     const at::Tensor& share_any, const at::Tensor& add_any) {
  const at::Tensor x = x_any.contiguous(), share = Contiguous(share_any);
  const at::Tensor add = Contiguous(add_any);
  TORCH_CHECK(x.dim() == 2 && order.scalar_type() == at::kLong &&
                  order.is_contiguous() && order.device() == x.device() &&
                  order.numel() % top_k == 0 &&
                  (!share.defined() || (share.scalar_type() == at::kFloat &&
                                        share.numel() == order.numel() &&
                                        share.device() == x.device())),
              "rows are summed by an int64 order of top_k each, and as many "
              "float32 shares");
  at::Tensor y = at::empty({order.numel() / top_k, x.size(1)}, x.options());
  SumChosenArgs args = {};
  args.dtype = TypeOf(x);
  args.x = x.const_data_ptr();
  args.places = x.size(0);
  args.order = order.const_data_ptr<int64_t>();
  if (share.defined()) args.share = share.const_data_ptr<float>();
  args.add = Matrix(add, y, "what is added");
  args.y = y.mutable_data_ptr();
  args.rows = y.size(0);
  args.top_k = top_k;
  args.n = y.size(1);
  Check(cuda.sum_chosen(args, Stream(cuda, x)), "sum_chosen");
  return y;
}

at::Tensor SquaredSum(const CudaKernels& cuda, const at::Tensor& x) {
  TORCH_CHECK(x.is_contiguous(), "the squared sum needs a contiguous tensor");
  const auto doubles = x.options().dtype(at::kDouble);
  const at::Tensor partial = at::empty({kSquaredSumPartials}, doubles);
  at::Tensor sum = at::empty({}, doubles);
  const SquaredSumArgs args = {TypeOf(x), x.const_data_ptr(),
                               partial.mutable_data_ptr<double>(),
                               sum.mutable_data_ptr<double>(), x.numel()};
  Check(cuda.squared_sum(args, Stream(cuda, x)), "squared_sum");
  return sum;
}

}  // namespace capstan::kernels::cuda
