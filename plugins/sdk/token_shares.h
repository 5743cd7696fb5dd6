// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_TOKEN_SHARES_H_
#define CAPSTAN_PLUGINS_SDK_TOKEN_SHARES_H_

namespace capstan {

// The number of a row's tokens that are multiplied with a matrix: of_length *
// length + of_row.
struct TokenShare {
  double of_length = 1.0;
  double of_row = 0.0;
};

// A model also derives from this if not every token is multiplied with every
// matrix (a mixture of experts; layers that compute only the last token), so
// that FLOPs can be counted; found by dynamic_cast.
class TokenShares {
 public:
  virtual ~TokenShares() = default;
  // The share of matrix `parameter` of Model::parameters(). That of attention's
  // output projection is also the share of its queries.
  virtual TokenShare ShareOf(int parameter) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_TOKEN_SHARES_H_
