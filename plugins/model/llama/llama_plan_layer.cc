// SPDX-License-Identifier: Apache-2.0
//
// A layer's part of the rehearsal: see llama_plan.cc.
#include <algorithm>

#include "kernels/layers/transformer_block.h"
#include "plugins/model/llama/llama_plan_sizes.h"
#include "plugins/model/llama/llama_weights.h"

namespace capstan {
namespace llama {
namespace plan {
namespace {

// One linear layer of a block, [out, in].
struct Linear {
  Linear(const Sizes& s, int layer, LayerParameter parameter, int64_t out,
         int64_t in)
      : rows(s.rows()), element(s.element), in(in) {
    const int64_t weight = out * in * s.element;
    if (s.trained()) {
      gradients = largest = weight;
    } else if (s.lora->Has(LayerIndex(layer, parameter))) {
      rank = s.lora->rank();
      dropout = s.lora->dropout();
      gradients = rank * (in + out) * element;
      largest = rank * std::max(in, out) * element;
    }
  }

  // [rows, rank], and with dropout the mask and what it leaves of the input:
  // AddAdapter, and AdapterBackward (which has two of the first).
  int64_t forward_workspace() const {
    return rank == 0 ? 0 : inner() + (dropout ? rows * in * (1 + element) : 0);
  }
  int64_t backward_workspace() const {
    if (rank == 0) return 0;
    const int64_t masked = dropout ? rows * in * (1 + 2 * element) : 0;
    return std::max(2 * inner(), inner() + masked);
  }
  int64_t inner() const { return rows * rank * element; }

  int64_t rows, element, in;
  int64_t rank = 0;  // of its adapter; 0: none
  bool dropout = false;
  int64_t gradients = 0;  // of its parameters, all together
  int64_t largest = 0;    // of them
};

struct Layer {
  Layer(const Sizes& s, int layer)
      : Layer(s, layer, s.config.hidden_size, s.config.intermediate_size,
              s.config.num_attention_heads * s.head(),
              s.config.num_key_value_heads * s.head()) {}
  Layer(const Sizes& s, int layer, int64_t hidden, int64_t inner, int64_t q,
        int64_t kv)
      : query(s, layer, kQuery, q, hidden),
        key(s, layer, kKey, kv, hidden),
        value(s, layer, kValue, kv, hidden),
        output(s, layer, kOutput, hidden, q),
        gate(s, layer, kGate, inner, hidden),
        up(s, layer, kUp, inner, hidden),
        down(s, layer, kDown, hidden, inner) {}

  // The greatest of one number of them.
  template <typename Number>
  int64_t Max(const Number& number) const {
    int64_t most = 0;
    for (const Linear* l : {&query, &key, &value, &output, &gate, &up, &down}) {
      most = std::max(most, number(*l));
    }
    return most;
  }

  Linear query, key, value, output, gate, up, down;
};

// The blocks of scores of ATen's fused attention (FlashAttentionKernel.cpp):
// `scores` of them in float32 and as many rounded. For one thread: on CPUs
// ranks have few.
int64_t AttentionBlocks(const Sizes& s, int64_t scores) {
  const int64_t queries = std::min<int64_t>(
      s.length >= 768 ? 256 : (s.length >= 192 ? 64 : 32), s.length);
  const int64_t keys = std::min<int64_t>(512, s.length);
  return scores * queries * keys * (kFloatBytes + s.element);
}

// Of 16-bit types, by ATen.
void AttentionForward(const Sizes& s, Ledger* ledger) {
  // Keys and values, repeated for each head of their group.
  if (s.grouped()) ledger->Take(2 * s.q());
  ledger->Pass(s.q() + s.log_sum_exp() + AttentionBlocks(s, 1));
  ledger->Take(s.q() + s.log_sum_exp());
  // The documents' outputs, of which the next operator keeps one piece.
  if (s.cut()) ledger->Take(s.q());
}

// The incoming gradient, [rows, heads * head_dim], is used up.
void AttentionBackward(const Sizes& s, Ledger* ledger) {
  ledger->Pass(3 * s.q() + AttentionBlocks(s, 2));
  ledger->Take(3 * s.q());
  if (s.cut()) {
    ledger->Pass(s.q());  // the documents' gradients, put together
    ledger->Free(s.q());
  }
  ledger->Free(s.q() + 2 * (s.grouped() ? s.q() : s.kv()));
  ledger->Free(2 * s.q() + s.log_sum_exp());  // the output and its gradient
  if (!s.grouped()) return;
  // Summed over each group, then put in the order of the rows.
  for (int i = 0; i < 2; ++i) {
    ledger->Take(s.kv());
    ledger->Free(s.q());
    ledger->Pass(s.kv());
  }
}

// PlainTransformerBlock from x, which the unit before keeps. Ends with what is
// kept.
void ForwardLayer(const Sizes& s, const Layer& layer, Ledger* ledger) {
  // AttentionInput
  Normalise(s, ledger);
  ledger->Take(s.rstd() + s.q() + 2 * s.kv());
  ledger->Pass(layer.value.forward_workspace());
  ledger->Free(s.x());
  AttentionForward(s, ledger);
  // LinearAdd
  ledger->Take(s.x());
  ledger->Pass(layer.output.forward_workspace());
  // GatedMlp
  Normalise(s, ledger);
  ledger->Take(s.rstd() + 2 * s.inner());
  ledger->Pass(layer.up.forward_workspace());
  ledger->Take(s.inner() + s.x());
  ledger->Pass(layer.down.forward_workspace());
  ledger->Free(s.inner() + s.x());
  // Attention has kept its copies.
  if (s.grouped()) ledger->Free(2 * s.kv());
}

// From what is kept, with the output's gradient in the output's place.
// Gradients of parameters live until the next operator of the backward.
void BackwardLayer(const Sizes& s, const Layer& layer, Ledger* ledger) {
  // GatedMlp: the gradients of the activation, gate and up.
  ledger->Take(3 * s.inner());
  ledger->Take(layer.down.gradients);
  ledger->Pass(layer.down.backward_workspace());
  ledger->Free(s.inner());
  Normalise(s, ledger);
  ledger->Take(layer.gate.gradients + layer.up.gradients + s.x());
  ledger->Pass(layer.up.backward_workspace());
  NormaliseBackward(s, ledger);
  ledger->Free(2 * s.inner() + 3 * s.x());         // gradients
  ledger->Free(s.x() + 2 * s.inner() + s.rstd());  // what was kept
  ledger->Free(layer.gate.gradients + layer.up.gradients +
               layer.down.gradients + s.NormGradient());
  // LinearAdd; the gradient of its output is that of x, too.
  ledger->Take(s.q());
  ledger->Pass(layer.output.gradients + layer.output.backward_workspace());
  AttentionBackward(s, ledger);
  // AttentionInput
  Normalise(s, ledger);
  ledger->Take(s.x() + layer.query.gradients + layer.key.gradients +
               layer.value.gradients);
  ledger->Pass(layer.value.backward_workspace());
  NormaliseBackward(s, ledger);
}

// FusedTransformerBlock, whose matrices' gradients go to the strategy's places;
// those of adapters come together at the end.
void PlanFusedLayer(const Sizes& s, const Layer& layer, UnitMemory* unit,
                    int64_t* backward_peak) {
  const LlamaConfig& c = s.config;
  kernels::AttentionShape shape;
  shape.batch = s.samples;
  shape.heads = c.num_attention_heads;
  shape.kv_heads = c.num_key_value_heads;
  shape.head_dim = c.head_dim;
  shape.causal = c.causal;
  const kernels::TransformerBlockSizes sizes =
      kernels::FusedTransformerBlockSizes(s.rows(), c.hidden_size,
                                          c.intermediate_size, shape);
  unit->kept = sizes.kept * kFloatBytes + s.x();
  unit->forward_workspace =
      sizes.forward * kFloatBytes +
      layer.Max([](const Linear& l) { return l.forward_workspace(); });
  const int64_t backward = sizes.backward * kFloatBytes;
  *backward_peak = backward + s.x() + 2 * s.NormGradient();
  if (s.trained()) return;
  // The MLP's come first, the gradient to x last.
  int64_t gradients = 0;
  for (const Linear* l : {&layer.down, &layer.gate, &layer.up, &layer.output,
                          &layer.query, &layer.key, &layer.value}) {
    *backward_peak = std::max(*backward_peak,
                              backward + gradients + l->backward_workspace());
    gradients += l->gradients;
  }
  *backward_peak = std::max(*backward_peak, backward + gradients + s.x());
}

}  // namespace

UnitMemory PlanLayer(const Sizes& s, int index) {
  const Layer layer(s, index);
  UnitMemory unit;
  int64_t backward_peak = 0;
  if (s.fused) {
    PlanFusedLayer(s, layer, &unit, &backward_peak);
  } else {
    Ledger forward;
    ForwardLayer(s, layer, &forward);
    unit.kept = forward.live();
    unit.forward_workspace = forward.peak() - forward.live();
    Ledger backward(unit.kept);
    BackwardLayer(s, layer, &backward);
    backward_peak = backward.peak() - unit.kept;
  }
  unit.output = s.x();
  unit.backward_workspace =
      backward_peak - layer.Max([](const Linear& l) { return l.largest; });
  return unit;
}

}  // namespace plan
}  // namespace llama
}  // namespace capstan
