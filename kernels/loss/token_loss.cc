// SPDX-License-Identifier: Apache-2.0
//
// Forward replaces the head's logits by their gradient. All chunks of rows but
// the last are turned at once into gradients of hidden and weight; the last
// waits for backward. (With a single chunk, this keeps [rows, vocab] instead of
// [vocab, hidden], and one product computes and scales each gradient.)
//
// In 16-bit types products of that gradient stay float32 until they are summed
// and scaled: only the loss scale lifts them into float16's range.
//
// If many rows have no target (training on answers, masked diffusion), the head
// works on copies of the others (SeenRows).
#include "kernels/loss/token_loss.h"

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/exp2.h>
#include <ATen/ops/log2.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/simd/simd.h"
#include "kernels/fast_path.h"
#include "kernels/keep.h"
#include "kernels/kept_memory.h"
#include "kernels/layers/gpu_path.h"
#include "kernels/loss/seen_rows.h"
#include "kernels/loss/tokens.h"

namespace capstan::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

bool IsHalf(const at::Tensor& t) {
  return t.scalar_type() == at::kHalf || t.scalar_type() == at::kBFloat16;
}

at::TensorOptions Wide(const at::Tensor& t) {
  return t.options().dtype(at::kFloat).requires_grad(false);
}

RunDevice DeviceOf(const at::Tensor& t) {
  return {t.is_cuda(), CurrentRunDevice().memory};
}

// The factor for the gradient of the logits, between -1 and 1, before rounding:
// float16 would lose most of what is below 2^-14.
double Lift(const at::Tensor& logits) {
  return logits.scalar_type() == at::kHalf ? 32768.0 : 1.0;
}

// The power of 2 that divides float16's row weights to at most 1, the range
// that Lift supports, computed without waiting for the GPU. Undefined: 1.
at::Tensor UnitOf(const at::Tensor& row_weights, const at::Tensor& targets,
                  at::ScalarType dtype) {
  if (!row_weights.defined() || dtype != at::kHalf ||
      row_weights.numel() == 0) {
    return at::Tensor();
  }
  const at::Tensor most =
      row_weights.abs().masked_fill_(targets < 0, 0.0).max();
  return at::exp2(at::log2(most).ceil().clamp_min(-100.0));  // of 0, too
}

at::Tensor Select(const at::Tensor& t, const at::Tensor& rows) {
  return t.defined() && rows.defined() ? t.index_select(0, rows) : t;
}

// [all, n]: x [rows, n] at `rows`, 0 elsewhere.
at::Tensor Spread(const at::Tensor& x, const at::Tensor& rows, int64_t all) {
  return at::zeros({all, x.size(1)}, x.options()).index_copy_(0, rows, x);
}

// Rows [begin, begin + n) of a tensor that may be undefined.
at::Tensor RowsOf(const at::Tensor& t, int64_t begin, int64_t n) {
  return t.defined() ? t.narrow(0, begin, n) : t;
}

// logits = cap * tanh(logits / cap), rounded once; returns the derivative,
// float32. Neither for a cap of 0.
at::Tensor SoftCap(at::Tensor& logits, double cap) {
  if (cap == 0.0) return at::Tensor();
  if (!FastPath(logits) || !logits.is_contiguous()) {
    at::Tensor t = logits.to(at::kFloat, false, /*copy=*/true);
    logits.copy_(t.div_(cap).tanh_().mul_(cap));
    return t.div_(cap).square_().neg_().add_(1.0);
  }
  at::Tensor slope = at::empty_like(logits);
  float *x = Data(logits), *dx = Data(slope);
  at::parallel_for(0, logits.numel(), RowGrain(1), [&](int64_t i, int64_t end) {
    Simd().softcap(x + i, end - i, static_cast<float>(cap), dx + i);
  });
  return slope;
}

// The gradient of capped logits becomes that of logits; uses up `slope`.
void SoftCapBackward(at::Tensor& gradient, at::Tensor slope) {
  if (!slope.defined()) return;
  if (gradient.scalar_type() == slope.scalar_type()) {
    gradient.mul_(slope);
  } else {  // less memory than a product in place, which widens its result too
    gradient.copy_(slope.mul_(gradient));
  }
}

// Bytes that a soft-cap takes besides `logits` of them: the derivative, and
// 16-bit logits widened to be multiplied by it.
int64_t SoftCapBytes(int64_t logits, int64_t element) {
  return logits * kFloatBytes * (element == kFloatBytes ? 1 : 2);
}

// Bytes of a chunk's row of logits.
int64_t RowBytes(int64_t vocab, int64_t element, bool softcap) {
  return vocab * element + (softcap ? SoftCapBytes(vocab, element) : 0);
}

// Of `rows` rows, how many have their logits at a time. logits_bytes: at most,
// 0 for the device's.
int64_t PieceRows(const at::Tensor& hidden, const at::Tensor& weight,
                  int64_t rows, int64_t logits_bytes, double softcap) {
  return PiecesOf(
             rows,
             RowBytes(weight.size(0), weight.element_size(), softcap != 0.0),
             logits_bytes > 0 ? logits_bytes : LogitsBytes(DeviceOf(hidden)))
      .rows;
}

// sum += a b in float32, where an undefined sum is 0, for 16-bit a and b.
void AddWideProduct(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  const bool add = sum.defined();
  if (!add) sum = at::empty({a.size(0), b.size(1)}, Wide(a));
  MatMulInto(sum, a, b, add ? 1.0 : 0.0);
}

// x * factor, rounded once to `type`.
at::Tensor Scaled(at::Tensor x, const at::Tensor& factor, at::ScalarType type) {
  if (!OnGpuPath(x)) return x.mul_(factor).to(type);
  at::Tensor out = at::empty(x.sizes(), x.options().dtype(type));
  return at::mul_out(out, x, factor);  // one pass rather than two
}

// *sum += loss, where an undefined sum is 0.
void AddTo(const at::Tensor& loss, at::Tensor* sum) {
  *sum = sum->defined() ? sum->add_(loss) : loss;
}

// out = a b * factor, without waiting for the GPU to read the factor.
void MatMulScaled(at::Tensor& out, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& factor) {
  if (factor.device().is_cpu()) {
    MatMulInto(out, a, b, /*beta=*/0.0, factor.item<double>());
    return;
  }
  MatMulInto(out, a, b);
  out.mul_(factor);
}

// The place to write a gradient early, if there is one: of 16 bits only a
// float32 sum.
WeightPlace::AnyPlace OpenFor(const WeightPlace& to, const at::Tensor& like) {
  if (!IsHalf(like)) return {to.Open(), /*wide=*/false};
  WeightPlace::AnyPlace place = {to.OpenWide(), /*wide=*/true};
  place.wide = place.gradient.defined();
  return place;
}

// `sum` * scale, which uses up `sum`, in the place, if there is one, else in
// the same memory.
at::Tensor Finish(at::Tensor sum, const at::Tensor& scale, at::Tensor out,
                  bool add) {
  if (!out.defined()) return sum.mul_(scale);
  if (!add) return at::mul_out(out, sum, scale);
  if (OnGpuPath(sum)) return out.addcmul_(sum, scale);  // one pass
  return out.add_(sum.mul_(scale));
}

// The whole gradient, float32 for 16-bit types; clears its parts.
at::Tensor TakeGradient(HeadGradient& head, GradientSink::Place place) {
  at::Tensor out = std::move(place.gradient);
  const at::Tensor d_logits = std::move(head.d_logits);
  const at::Tensor hidden = std::move(head.hidden);
  for (const at::Tensor& kept : {d_logits, hidden}) {
    CheckKept(kept);
    DropKept(kept);
  }
  at::Tensor so_far = std::move(head.so_far);
  const at::Tensor scale = std::move(head.scale);
  if (IsHalf(d_logits) && OnGpuPath(d_logits)) {
    if (!so_far.defined() && out.defined() && !place.add) {
      MatMulInto(out, d_logits.t(), hidden);
      return out.mul_(scale);
    }
    AddWideProduct(so_far, d_logits.t(), hidden);
    return Finish(so_far, scale, out, place.add);
  }
  // A product can't add a multiple that only the GPU knows.
  if (!so_far.defined() && place.add && OnGpuPath(scale)) {
    so_far = MatMul(d_logits.t(), hidden);
    return Finish(so_far, scale, out, /*add=*/true);
  }
  if (so_far.defined()) {
    MatMulInto(so_far, d_logits.t(), hidden, /*beta=*/1.0);
    return Finish(so_far, scale, out, place.add);
  }
  if (place.add) {
    MatMulInto(out, d_logits.t(), hidden, /*beta=*/1.0, scale.item<double>());
    return out;
  }
  if (!out.defined()) {
    out = at::empty({d_logits.size(1), hidden.size(1)},
                    IsHalf(hidden) ? Wide(hidden) : hidden.options());
  }
  MatMulScaled(out, d_logits.t(), hidden, scale);
  return out;
}

struct EmbeddingCall {
  WeightPlace place;
  int64_t vocab;
  TiedGradient tied;  // or null
};

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& weight,
                            const at::Tensor& tokens, const TiedGradient& tied,
                            const WeightPlace& place) {
    ctx->save_for_backward({tokens});
    Keep(ctx, EmbeddingCall{place, weight.size(0), tied});
    return at::embedding(weight, tokens);
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const at::Tensor tokens = ctx->get_saved_variables()[0];
    const at::ScalarType dtype = grads[0].scalar_type();
    const at::Tensor dy = grads[0].contiguous();
    const EmbeddingCall& call = KeptOf<EmbeddingCall>(ctx);
    WeightPlace::AnyPlace place = OpenFor(call.place, dy);
    at::Tensor dw;
    if (call.tied && call.tied->scale.defined()) {
      dw = TakeGradient(*call.tied, {std::move(place.gradient), place.add});
    }
    if (!dw.defined() && place.gradient.defined()) {
      dw = std::move(place.gradient);
      if (!place.add) dw.zero_();
    }
    if (!dw.defined()) {
      dw = at::zeros({call.vocab, dy.size(1)}, dy.options().dtype(at::kFloat));
    }
    AddEmbeddingGradient(dy, tokens, dw);
    variable_list out(4);
    if (place.wide) return out;
    if (dw.scalar_type() != dtype) dw = dw.to(dtype);
    out[0] = std::move(dw);
    return out;
  }
};

// Not tracked by autograd.
struct HeadRows {
  SeenRows seen;
  double softcap = 0.0;
  double smoothing = 0.0;
  double temperature = 1.0;
};

struct HeadCall {
  WeightPlace place;
  int64_t rows;  // of hidden, seen or not
  TiedGradient head;
  bool tied;
};

class HeadFunction : public torch::autograd::Function<HeadFunction> {
 public:
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& all_hidden,
                            const at::Tensor& weight, const HeadRows& of,
                            int64_t piece, bool want_weight,
                            const TiedGradient& tied,
                            const WeightPlace& place) {
    TiedGradient head = tied ? tied : c10::make_intrusive<HeadGradient>();
    const at::Tensor hidden = Select(all_hidden, of.seen.rows);
    const at::Tensor unit =
        UnitOf(of.seen.weights, of.seen.targets, hidden.scalar_type());
    const at::Tensor factors =
        unit.defined() ? of.seen.weights / unit : of.seen.weights;
    const int64_t rows = hidden.size(0);
    at::Tensor sum;
    const bool half = IsHalf(hidden);
    at::Tensor d_hidden =
        at::empty(hidden.sizes(),
                  half ? hidden.options().dtype(at::kFloat) : hidden.options());
    // There is a last chunk even without rows.
    for (int64_t r = 0;; r += piece) {
      const int64_t n = std::min(piece, rows - r);
      const at::Tensor h = hidden.narrow(0, r, n);
      at::Tensor logits = MatMul(h, weight.t());
      at::Tensor slope = SoftCap(logits, of.softcap);
      if (of.temperature != 1.0) logits.div_(of.temperature);
      AddTo(CrossEntropySum(logits, of.seen.targets.narrow(0, r, n), true,
                            Lift(logits), RowsOf(factors, r, n), of.smoothing),
            &sum);
      if (of.temperature != 1.0) logits.div_(of.temperature);
      SoftCapBackward(logits, std::move(slope));
      if (r + n == rows) {
        head->d_logits = logits;
        head->hidden = h;
        TakeKept(logits);
        TakeKept(h);
        break;
      }
      at::Tensor dh = d_hidden.narrow(0, r, n);
      if (half) {
        MatMulInto(dh, logits, weight);
        if (want_weight) AddWideProduct(head->so_far, logits.t(), h);
        continue;
      }
      MatMulInto(dh, logits, weight);
      if (!want_weight) continue;
      if (head->so_far.defined()) {
        MatMulInto(head->so_far, logits.t(), h, /*beta=*/1.0);
      } else {
        head->so_far = MatMul(logits.t(), h);
      }
    }
    if (unit.defined()) sum.mul_(unit);
    ctx->save_for_backward({weight, d_hidden, unit, of.seen.rows});
    Keep(ctx, HeadCall{place, all_hidden.size(0), head, tied != nullptr});
    return sum;
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& weight = saved[0];
    const HeadCall& call = KeptOf<HeadCall>(ctx);
    const TiedGradient& head = call.head;
    TORCH_CHECK(head->d_logits.defined(),
                "the loss's backward can run only once");
    CheckKept(head->d_logits);
    const bool half = IsHalf(weight);
    at::Tensor d_hidden = saved[1];
    const at::Tensor &unit = saved[2], &seen = saved[3];
    const double lift = half ? Lift(weight) : 1.0;
    head->scale = lift == 1.0 ? grads[0] : grads[0] / lift;
    if (unit.defined()) head->scale = head->scale * unit;
    const int64_t rows = d_hidden.size(0), last = head->d_logits.size(0);
    at::Tensor dh = d_hidden.narrow(0, rows - last, last);
    if (half) {
      MatMulInto(dh, head->d_logits, weight);
      d_hidden = Scaled(d_hidden, head->scale, weight.scalar_type());
    } else {
      if (last < rows) d_hidden.narrow(0, 0, rows - last).mul_(head->scale);
      MatMulScaled(dh, head->d_logits, weight, head->scale);
    }
    variable_list out(7);
    out[0] = seen.defined() ? Spread(d_hidden, seen, call.rows) : d_hidden;
    if (!ctx->needs_input_grad(1)) {
      head->d_logits.reset();
      head->hidden.reset();
    } else if (!call.tied) {
      WeightPlace::AnyPlace place = OpenFor(call.place, weight);
      const bool wide = place.wide;
      out[1] = TakeGradient(*head, {std::move(place.gradient), place.add});
      if (wide) {
        out[1].reset();
      } else if (half) {
        out[1] = out[1].to(weight.scalar_type());
      }
    }
    return out;
  }
};

// For plans.
struct LossBytes {
  explicit LossBytes(const TokenLossShape& shape) : s(shape) {}
  const TokenLossShape& s;
  const bool half = s.dtype != c10::ScalarType::Float;
  // Whether the weight's gradient is written to a place.
  const bool sunk = s.sink;
  const int64_t element = ElementBytes(s.dtype);
  const LogitsPieces pieces = PiecesOf(
      s.rows, RowBytes(s.vocab, element, s.softcap), LogitsBytes(s.device));
  const int64_t x = s.rows * s.hidden * element;
  const int64_t wide_x = s.rows * s.hidden * kFloatBytes;
  const int64_t weight = s.vocab * s.hidden * element;
  const int64_t wide_weight = s.vocab * s.hidden * kFloatBytes;
  const int64_t logits = pieces.rows * s.vocab * element;
  const int64_t slope =
      s.softcap ? SoftCapBytes(pieces.rows * s.vocab, element) : 0;
  const int64_t last_slope =
      s.softcap ? SoftCapBytes(pieces.last * s.vocab, element) : 0;
  const int64_t last_logits = pieces.last * s.vocab * element;
};

// TakeGradient; a sink's place is not counted.
void PlanTakeGradient(const TokenLossShape& s, const LossBytes& b,
                      MemoryLedger* ledger) {
  const int64_t so_far = b.pieces.count > 1 ? b.wide_weight : 0;
  if (b.sunk) {
    // On a GPU all micro-steps but the first add what is in memory.
    if (s.device.gpu) ledger->Pass(b.wide_weight - so_far);
    ledger->Free(so_far);
  } else {
    ledger->Take(b.wide_weight - so_far);
  }
  ledger->Free(b.last_logits);
}

}  // namespace

at::Tensor Embedding(const at::Tensor& weight, const at::Tensor& tokens,
                     const TiedGradient& tied, const WeightPlace& place) {
  return EmbeddingFunction::apply(weight, tokens, tied, place);
}

at::Tensor HeadLogits(const at::Tensor& hidden, const at::Tensor& weight,
                      double softcap) {
  at::Tensor logits = MatMul(hidden, weight.t());
  SoftCap(logits, softcap);
  return logits;
}

at::Tensor HeadCrossEntropySum(const at::Tensor& hidden,
                               const at::Tensor& weight,
                               const at::Tensor& targets,
                               const TiedGradient& tied, int64_t logits_bytes,
                               const WeightPlace& place,
                               const at::Tensor& row_weights, double softcap,
                               double smoothing, double temperature) {
  TORCH_CHECK(!row_weights.defined() || row_weights.sizes() == targets.sizes(),
              "each row must have one target and one weight");
  const HeadRows of = {RowsToSee(hidden, targets, row_weights), softcap,
                       smoothing, temperature};
  const int64_t rows = of.seen.targets.size(0);
  const int64_t piece = PieceRows(hidden, weight, rows, logits_bytes, softcap);
  if (at::GradMode::is_enabled() &&
      (hidden.requires_grad() || weight.requires_grad())) {
    return HeadFunction::apply(hidden, weight, of, piece,
                               weight.requires_grad(), tied, place);
  }
  const at::Tensor x = Select(hidden, of.seen.rows);
  at::Tensor sum = at::zeros({}, hidden.options().dtype(at::kFloat));
  for (int64_t r = 0; r < rows; r += piece) {
    const int64_t n = std::min(piece, rows - r);
    at::Tensor logits = HeadLogits(x.narrow(0, r, n), weight, softcap);
    if (temperature != 1.0) logits.div_(temperature);
    sum += CrossEntropySum(logits, of.seen.targets.narrow(0, r, n), false,
                           /*factor=*/1.0, RowsOf(of.seen.weights, r, n),
                           smoothing);
  }
  return sum;
}

at::Tensor HeadLogProbs(const at::Tensor& hidden, const at::Tensor& weight,
                        const at::Tensor& targets, int64_t logits_bytes,
                        double softcap, double temperature,
                        at::Tensor* entropy) {
  const SeenRows seen = RowsToSee(hidden, targets, {});
  const at::Tensor x = Select(hidden, seen.rows);
  const int64_t rows = x.size(0);
  const int64_t piece = PieceRows(hidden, weight, rows, logits_bytes, softcap);
  at::Tensor found = at::zeros({rows}, Wide(hidden));
  at::Tensor entropies;
  if (entropy != nullptr) entropies = at::zeros({rows}, Wide(hidden));
  for (int64_t r = 0; r < rows; r += piece) {
    const int64_t n = std::min(piece, rows - r);
    at::Tensor of_piece;
    found.narrow(0, r, n).copy_(
        LogProbs(HeadLogits(x.narrow(0, r, n), weight, softcap),
                 seen.targets.narrow(0, r, n), temperature,
                 entropy == nullptr ? nullptr : &of_piece));
    if (entropy != nullptr) entropies.narrow(0, r, n).copy_(of_piece);
  }
  const auto spread = [&](const at::Tensor& t) {
    return seen.rows.defined()
               ? Spread(t.unsqueeze(1), seen.rows, hidden.size(0)).squeeze(1)
               : t;
  };
  if (entropy != nullptr) *entropy = spread(entropies);
  return spread(found);
}

int64_t LogitsBytes(const RunDevice& device) {
  constexpr int64_t kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;
  if (!device.gpu) return kLogitsBytes;
  // In steps: what else is in a GPU's memory must not change a run's bits.
  if (device.memory >= 48 * kGiB) return 2 * kGiB;
  const bool small = device.memory > 0 && device.memory < 12 * kGiB;
  return small ? 256 * kMiB : kGiB;
}

LogitsPieces PiecesOf(int64_t rows, int64_t row_bytes, int64_t logits_bytes) {
  const int64_t most = std::max<int64_t>(1, logits_bytes / row_bytes);
  LogitsPieces pieces;
  pieces.count = std::max<int64_t>(1, (rows + most - 1) / most);
  pieces.rows = std::max<int64_t>(1, (rows + pieces.count - 1) / pieces.count);
  pieces.last = rows - (pieces.count - 1) * pieces.rows;
  return pieces;
}

void PlanHead(const TokenLossShape& s, MemoryLedger* ledger) {
  const LossBytes b(s);
  ledger->Take(b.wide_x);
  if (b.pieces.count > 1) {
    const int64_t weight = s.trained ? b.wide_weight : 0;
    ledger->Pass(b.logits + b.slope + (b.pieces.count > 2 ? weight : 0));
    ledger->Pass(b.logits + weight);
    ledger->Take(weight);  // so_far
  }
  ledger->Take(b.last_logits);
  ledger->Pass(b.last_slope);
}

void PlanHeadBackward(const TokenLossShape& s, MemoryLedger* ledger) {
  const LossBytes b(s);
  if (b.half) ledger->Take(b.x);
  if (!s.trained) {
    ledger->Free(b.last_logits);
  } else if (!s.tied) {
    PlanTakeGradient(s, b, ledger);
    if (b.half && !b.sunk) {
      ledger->Take(b.weight);
      ledger->Free(b.wide_weight);
    }
    // The strategy takes the weight's gradient at once.
    ledger->Free(b.x + (b.sunk ? 0 : b.weight));
  }
  if (b.half) ledger->Free(b.wide_x);
}

void PlanEmbeddingBackward(const TokenLossShape& s, MemoryLedger* ledger) {
  const LossBytes b(s);
  if (s.tied) {
    PlanTakeGradient(s, b, ledger);
  } else if (!b.sunk) {
    ledger->Take(b.wide_weight);
  }
  if (b.half && !b.sunk) ledger->Take(b.weight);
}

}  // namespace capstan::kernels
