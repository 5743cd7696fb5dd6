// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_BASE_TOKEN_SHARES_H_
#define CAPSTAN_BASE_TOKEN_SHARES_H_

namespace capstan {

// How many of a row's tokens go through the product with a matrix:
// of_length * length + of_row.
struct TokenShare {
  double of_length = 1.0;
  double of_row = 0.0;
};

// A model also derives from this if not all tokens go through all of its
// matrices (a mixture of experts; layers that compute the last token alone), so
// that FLOPs can be counted. Found by dynamic_cast. Header only, as it is
// shared by the core and plugins.
class TokenShares {
 public:
  virtual ~TokenShares() = default;
  // Of matrix `parameter` of Model::parameters(). That of one that reads
  // attention's heads is also the share of its queries.
  virtual TokenShare ShareOf(int parameter) const = 0;
};

}  // namespace capstan

#endif  // CAPSTAN_BASE_TOKEN_SHARES_H_
