// SPDX-License-Identifier: Apache-2.0
#ifndef CAPSTAN_PLUGINS_SDK_LIB_TOKEN_DIFFERENCE_H_
#define CAPSTAN_PLUGINS_SDK_LIB_TOKEN_DIFFERENCE_H_

#include <string>

#include "plugins/sdk/tokenizer.h"

namespace capstan {

// A place where the tokens of `a` and `b` differ: "id 5 is \"a\" in the one and
// \"b\" in the other"; "" if none is found. Compares what each id stands for,
// and the tokens of each id's text and of a text of many kinds of words; not
// what is special, nor what surrounds a text. Takes about a microsecond an id.
std::string TokenDifference(const Tokenizer& a, const Tokenizer& b);

// How tokenizers of the same tokens differ in what they put around a text: in
// the begin, end and padding tokens, in what AddEnds adds, or in the chat
// template; "" if they don't.
std::string EndsDifference(const Tokenizer& a, const Tokenizer& b);

}  // namespace capstan

#endif  // CAPSTAN_PLUGINS_SDK_LIB_TOKEN_DIFFERENCE_H_
