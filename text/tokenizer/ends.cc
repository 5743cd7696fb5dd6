// SPDX-License-Identifier: Apache-2.0
#include "text/tokenizer/ends.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace capstan {
namespace tokenizer {
namespace {

absl::Status CheckId(const JsonNode& node, int64_t id,
                     const Vocabulary& vocabulary) {
  if (id >= 0 && id < vocabulary.size() && vocabulary.Has(id)) {
    return absl::OkStatus();
  }
  return node.Invalid(absl::StrCat(id, " is the id of no token"));
}

// The ids that a template's special token stands for.
absl::StatusOr<std::vector<int64_t>> SpecialIds(const JsonNode& processor,
                                                const std::string& name,
                                                const Vocabulary& vocabulary) {
  const JsonNode token = processor.Member("special_tokens").Member(name);
  CAPSTAN_ASSIGN_OR_RETURN(const std::vector<JsonNode> items,
                           token.Member("ids").Items());
  std::vector<int64_t> ids;
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
                           node.Member("single").Items());
  Ends made;
  int texts = 0;
  for (const JsonNode& item : items) {
    const JsonNode special = item.Member("SpecialToken");
    if (special.IsNull()) {
      CAPSTAN_ASSIGN_OR_RETURN(const std::string id,
                               item.Member("Sequence").Member("id").String());
      if (id != "A") return item.Invalid("must be sequence A");
      ++texts;
      continue;
    }
    CAPSTAN_ASSIGN_OR_RETURN(const std::string name,
                             special.Member("id").String());
    CAPSTAN_ASSIGN_OR_RETURN(const std::vector<int64_t> ids,
                             SpecialIds(node, name, vocabulary));
    std::vector<int64_t>* const side = texts == 0 ? &made.before : &made.behind;
    side->insert(side->end(), ids.begin(), ids.end());
  }
  if (texts != 1) {
    return node.Member("single").Invalid("must have sequence A once");
  }
  // Around what an earlier processor has put there.
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

absl::Status Add(const JsonNode& node, const Vocabulary& vocabulary, int depth,
                 Ends* ends) {
  CAPSTAN_ASSIGN_OR_RETURN(const std::string type,
                           node.Member("type").String());
  if (type == "Sequence") {
    return ForEachInSequence(node, "processors", depth,
                             [&](const JsonNode& item) {
                               return Add(item, vocabulary, depth + 1, ends);
                             });
  }
  if (type == "ByteLevel") {
    // Moves the places of tokens away from spaces, and adds nothing. Here a
    // token's place is that of all its bytes.
    return node.CheckMembers(
        {"type", "add_prefix_space", "trim_offsets", "use_regex"});
  }
  if (type == "TemplateProcessing") return AddTemplate(node, vocabulary, ends);
  if (type == "RobertaProcessing") {
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
  return node.Unsupported(
      absl::StrCat("a post-processor of type \"", type, "\" isn't supported"));
}

}  // namespace

absl::StatusOr<Ends> MakeEnds(const JsonNode& node,
                              const Vocabulary& vocabulary) {
  Ends ends;
  if (!node.IsNull()) CAPSTAN_RETURN_IF_ERROR(Add(node, vocabulary, 0, &ends));
  return ends;
}

}  // namespace tokenizer
}  // namespace capstan
