// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/ends.h"

#include <string>

#include "base/status.h"

namespace capstan::tokenizer {
namespace {

// Of both sides together; known files have two.
constexpr size_t kMaxEnds = 64;

absl::Status CheckId(const JsonNode& node, int64_t id,
                     const Vocabulary& vocabulary) {
  if (id >= 0 && id < vocabulary.size() && vocabulary.Has(id)) {
    return absl::OkStatus();
  }
  return node.Invalid(id, " is the id of no token");
}

// Ids of a template's special token.
absl::StatusOr<std::vector<int64_t>> SpecialIds(const JsonNode& processor,
                                                const std::string& name,
                                                const Vocabulary& vocabulary) {
  const JsonNode token = processor.Member("special_tokens").Member(name);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items,
                           token.Items("ids"));
  std::vector<int64_t> ids;
  if (items.size() > kMaxEnds) return token.Invalid("has too many ids");
  for (const JsonNode& item : items) {
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, item.Int());
    CAPSTAN_RETURN_IF_ERROR(CheckId(item, id, vocabulary));
    ids.push_back(id);
  }
  return ids;
}

absl::Status AddTemplate(const JsonNode& node, const Vocabulary& vocabulary,
                         Ends* ends) {
  CAPSTAN_RETURN_IF_ERROR(
      node.CheckMembers({"type", "single", "pair", "special_tokens"}));
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items,
                           node.Items("single"));
  Ends made;
  int texts = 0;
  if (items.size() > kMaxEnds) {
    return node.Member("single").Invalid("has more than ", kMaxEnds, " items");
  }
  for (const JsonNode& item : items) {
    const JsonNode special = item.Member("SpecialToken");
    if (special.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string id,
                               item.Member("Sequence").String("id"));
      if (id != "A") return item.Invalid("must be sequence A");
      ++texts;
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string name, special.String("id"));
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                             SpecialIds(node, name, vocabulary));
    std::vector<int64_t>* const side = texts == 0 ? &made.before : &made.behind;
    side->insert(side->end(), ids.begin(), ids.end());
  }
  if (texts != 1) {
    return node.Member("single").Invalid("must have sequence A once");
  }
  // Goes outside what an earlier processor added.
  ends->before.insert(ends->before.begin(), made.before.begin(),
                      made.before.end());
  ends->behind.insert(ends->behind.end(), made.behind.begin(),
                      made.behind.end());
  return absl::OkStatus();
}

// ["</s>", 2]
absl::StatusOr<int64_t> PairId(const JsonNode& node,
                               const Vocabulary& vocabulary) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> pair, node.Items());
  if (pair.size() != 2) return node.Invalid("must be [\"token\", id]");
  CAPSTAN_ASSIGN_OR_RETURN(const int64_t id, pair[1].Int());
  CAPSTAN_RETURN_IF_ERROR(CheckId(pair[1], id, vocabulary));
  return id;
}

absl::Status Add(const JsonNode& node, const std::string& type,
                 const Vocabulary& vocabulary, Ends* ends) {
  if (type == "ByteLevel") {
    // ByteLevel only trims spaces from offsets. Our offsets cover all of a
    // token's bytes.
    return node.CheckMembers(
        {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "TemplateProcessing") return AddTemplate(node, vocabulary, ends);
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    CAPSTAN_RETURN_IF_ERROR(node.CheckMembers(
        {"type", "sep", "cls", "trim_offsets", "add_prefix_space"}));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t cls,
                             PairId(node.Member("cls"), vocabulary));
    CAPSTAN_ASSIGN_OR_RETURN(const int64_t sep,
                             PairId(node.Member("sep"), vocabulary));
    ends->before.insert(ends->before.begin(), cls);
    ends->behind.push_back(sep);
    return absl::OkStatus();
  }
  return node.Unsupported("a post-processor of type \"", type,
                          "\" isn't supported");
}

}  // namespace

absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary) {
  Ends ends;
  if (node.IsNull()) return ends;
  CAPSTAN_RETURN_IF_ERROR(ForEachStep(
      node, "processors", [&](const JsonNode& step, const std::string& type) {
        if (ends.before.size() + ends.behind.size() > kMaxEnds) {
          return step.Invalid("there are more than ", kMaxEnds,
                              " tokens around a text");
        }
        return Add(step, type, vocabulary, &ends);
      }));
  return ends;
}

}  // namespace capstan::tokenizer
