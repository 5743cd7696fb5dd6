// SPDX-License-Identifier: Apache-2.0
//
// Texts of a batch that begin alike, as answers to one prompt and pairs of
// preferred texts do: since a token sees only those before it, the layers
// compute a common beginning once, and not at all what follows a text's last
// target. Attention alone has whole rows.
#ifndef CAPSTAN_PLUGINS_MODEL_DECODER_SHARED_PREFIXES_H_
#define CAPSTAN_PLUGINS_MODEL_DECODER_SHARED_PREFIXES_H_

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/exchanged.h"

namespace capstan::decoder {

// Constant. The layers' rows, N of them, are tokens that are computed; those of
// a batch are B * T. Forwards have the bits that each row by itself has, where
// products have (kernels/decode/few_rows.h); gradients of a token that texts
// share are added up first, and so round otherwise.
class SharedPrefixes final
    : public kernels::AttentionExchange,
      public std::enable_shared_from_this<SharedPrefixes> {
 public:
  // tokens: [B, T] int64; targets: [.., B, T] int64, negative: none; both on
  // the CPU. Null if more than a share `most` of the tokens must be computed,
  // or none.
  static std::shared_ptr<SharedPrefixes> Find(const at::Tensor& tokens,
                                              const at::Tensor& targets,
                                              double most);

  // [N] int64: the computed tokens' places in the batch, b * T + t.
  const at::Tensor& places() const { return places_; }
  // [N] int64: their positions t.
  at::Tensor positions() const { return places_.remainder(length_); }

  // From x [N, width] to [B * T, width], in which what isn't computed is 0.
  // With gradient.
  at::Tensor Whole(const at::Tensor& x);

  // The same without autograd, and its backward: the sums over rows.
  at::Tensor ToAttention(const at::Tensor& x) override;
  at::Tensor ToAttentionBackward(const at::Tensor& dy) override;
  // Of a token that several rows have, the first row's: all are equal.
  at::Tensor FromAttention(const at::Tensor& x) override;
  at::Tensor FromAttentionBackward(const at::Tensor& dy) override;

 private:
  // Rows that begin with the same `length` tokens, which are computed from
  // `first` on; a row's other tokens follow.
  struct Group {
    std::vector<int64_t> rows;
    int64_t length = 0;
    int64_t first = 0;
  };
  // Tokens [begin, begin + count) of a row, which are computed from `first` on.
  struct Rest {
    int64_t row = 0, begin = 0, count = 0, first = 0;
  };

  SharedPrefixes() = default;
  static std::vector<Group> GroupsOf(const at::Tensor& tokens,
                                     const std::vector<int64_t>& ends);
  void Place(const std::vector<int64_t>& ends);
  // Between `computed` [N, width] and `whole` [B, T, width], all that isn't of
  // a group's beginning.
  void CopyRests(const at::Tensor& computed, const at::Tensor& whole,
                 bool to_whole) const;

  int64_t batch_ = 0, length_ = 0;  // B, T
  std::vector<Group> groups_;
  std::vector<Rest> rests_;
  at::Tensor places_;
};

}  // namespace capstan::decoder

#endif  // CAPSTAN_PLUGINS_MODEL_DECODER_SHARED_PREFIXES_H_
