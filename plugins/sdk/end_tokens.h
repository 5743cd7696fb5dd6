// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_END_TOKENS_H_
#define CAPSTAN_PLUGINS_SDK_END_TOKENS_H_

#include <cstdint>
#include <vector>

#include "plugins/sdk/token_model.h"

namespace capstan {

// A TokenModel also derives from this if several tokens may end a text (a
// chat model's end of a turn beside its end of text); found by dynamic_cast.
class EndTokens {
 public:
  virtual ~EndTokens();

  // Those besides TokenModel::eos_token.
  virtual const std::vector<int64_t>& other_end_tokens() const = 0;
};

// All tokens with which the model ends a text; may be none.
inline std::vector<int64_t> EndTokensOf(const TokenModel& model) {
  std::vector<int64_t> tokens;
  if (model.eos_token() >= 0) tokens.push_back(model.eos_token());
  if (const auto* others = dynamic_cast<const EndTokens*>(&model)) {
    tokens.insert(tokens.end(), others->other_end_tokens().begin(),
                  others->other_end_tokens().end());
  }
  return tokens;
}

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_END_TOKENS_H_
