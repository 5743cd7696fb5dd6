// SPDX-License-Identifier: Apache-2.0
//
// Where rows come from, and how they are read.
#include <algorithm>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "desk/import/resolve.h"

namespace capstan::import {

bool IsPreference(const std::string& method) {
  return method == "dpo" || method == "ipo" || method == "orpo" ||
         method == "simpo" || method == "kto" || method == "reward";
}

bool HasValidation(const Draft& draft) {
  return draft.Has("train_data.validation_fraction") ||
         !draft.eval_sources.empty();
}

namespace {

// Adds what a list of settings names or else the one.
void AddSources(const char* one, const char* list, Draft* draft,
                std::vector<Source>* sources) {
  std::vector<std::string> facts;
  std::string fact;
  while (draft->Has(fact = absl::StrCat(list, "[", facts.size(), "].path"))) {
    facts.push_back(fact);
  }
  if (facts.empty() && draft->Has(one)) facts.push_back(one);
  for (const std::string& named : facts) {
    const std::string& key = draft->Origin(named);
    const bool file =
        absl::EndsWith(key, "_file") || absl::EndsWith(key, "_path");
    const std::string& path = draft->Text(named);
    sources->push_back(
        {file ? draft->FilePath(path) : draft->Path(path), "", "", key});
  }
}

// One source is train_data's path and kind; of several each is a `source`.
void WriteSources(const std::string& kind, Draft* draft) {
  const bool one = draft->sources.size() == 1;
  for (size_t i = 0; i < draft->sources.size(); ++i) {
    const Source& source = draft->sources[i];
    const std::string at =
        one ? "train_data" : absl::StrCat("train_data.source#", i);
    draft->SetQuoted(at + ".path", source.path, source.origin);
    const std::pair<const char*, std::string> fields[] = {
        {".kind", kind.empty() ? source.kind : kind},
        {".weight", one ? "" : source.weight},
        {".loss_on", source.loss_on}};
    for (const auto& [field, text] : fields) {
      if (!text.empty()) draft->Set(at + field, text, "");
    }
  }
}

// Data that is measured: one is eval_data, of several each has a name.
void ResolveEvaluations(Draft* draft) {
  std::vector<Source>& sources = draft->eval_sources;
  AddSources("@eval_dataset", "@test_datasets", draft, &sources);
  if (sources.size() == 1) {
    draft->Set("eval_data", draft->Text("train_data"), "");
    draft->SetQuoted("eval_data.path", sources[0].path, sources[0].origin);
    return;
  }
  std::set<std::string> names;
  for (size_t i = 0; i < sources.size(); ++i) {
    std::string name = sources[i].path.substr(sources[i].path.rfind('/') + 1);
    name.resize(std::min(name.size(), name.find('.')));
    for (char& c : name) {
      if (!absl::ascii_isalnum(c) && c != '-') c = '_';
    }
    if (!names.insert(name).second) absl::StrAppend(&name, "_", i);
    const std::string at = absl::StrCat("eval_sets#", i);
    draft->SetQuoted(at + ".name", name, "");
    draft->SetQuoted(absl::StrCat(at, ".data.[plugin/",
                                  absl::StrReplaceAll(draft->Text("train_data"),
                                                      {{".", "|"}}),
                                  "|Config].path"),
                     sources[i].path, sources[i].origin);
  }
}

// eval_data is read as train_data is, which a complete config has to say.
void CopyHowToRead(Draft* draft) {
  if (!draft->Has("eval_data")) return;
  for (const char* const name :
       {".tokenizer", ".tokenizer.folder", ".chat_template",
        ".chat_template_file", ".kind", ".chat_template_kwargs", ".loss_on",
        ".max_length", ".packing", ".sequence_length", ".truncation"}) {
    const std::string field = absl::StrCat("train_data", name);
    if (draft->Has(field)) {
      draft->Set(absl::StrCat("eval_data", name), draft->Text(field), "");
    }
  }
  const std::string& kind = draft->eval_sources[0].kind;
  if (!kind.empty() && draft->Text("@method") == "sft") {
    draft->Set("eval_data.kind", kind, "");
  }
}

void ResolvePacking(const std::string& method, Draft* draft) {
  if (draft->Has("@block_size")) {
    draft->Copy("@block_size", "train_data.max_length");
    if (method == "pt" || draft->peers.count(kTransformers.name) > 0) {
      draft->Set("train_data.packing", "WRAPPED", draft->Origin("@block_size"));
    }
  }
  if (draft->Flag("@packing")) {
    draft->Set("train_data.packing", draft->Text("@packing_strategy"),
               draft->Origins({"@packing", "@packing_strategy"}));
  } else {
    draft->NoteUnused("@packing_strategy", "");
  }
  if (IsPreference(method) || method == "grpo") {
    draft->Erase("train_data.packing");
    draft->Erase("train_data.loss_on");
  }
}

// Who makes tokens of rows, and by which template.
void ResolveTokenizer(Draft* draft) {
  const std::string tokenizer = draft->Text("@tokenizer");
  if (!tokenizer.empty() && tokenizer != draft->Text("@model")) {
    const bool text = draft->Text("train_data") == "capstan.text";
    draft->SetQuoted(
        text ? "train_data.tokenizer.folder" : "train_data.tokenizer",
        draft->Path(tokenizer), draft->Origin("@tokenizer"));
  } else {
    draft->NoteUnused("@tokenizer", "the model's own");
  }
  const std::string path = draft->Text("@chat_template_path");
  if (absl::EndsWith(path, ".jinja")) {
    draft->SetQuoted("train_data.chat_template_file", draft->FilePath(path),
                     "chat_template_path");
  } else if (!path.empty()) {
    draft->Lose("@chat_template_path",
                "name its chat_template.jinja: train_data.chat_template_file");
  }
}

}  // namespace

void ResolveData(Draft* draft) {
  const std::string method = draft->Text("@method");
  draft->Set("train_data", "capstan.chat", "");
  if (draft->sources.empty()) {
    AddSources("@dataset", "@datasets", draft, &draft->sources);
  }
  if (draft->sources.empty()) {
    draft->Note(Effect::kLost, "the data", "", "train_data.path",
                "no file says where rows are: set train_data.path");
  }
  ResolvePacking(method, draft);
  if (draft->sources.size() == 1 &&
      absl::EndsWith(draft->sources[0].path, ".txt")) {
    draft->Set("train_data", "capstan.text", "");
    draft->Copy("train_data.max_length", "train_data.sequence_length");
    WriteSources("", draft);
    draft->EraseAll("train_data", "max_length packing loss_on kind");
  } else {
    // Prompts are never cut.
    if (!draft->Has("train_data.max_length") && method != "grpo") {
      draft->Note(Effect::kDiffers, "rows' length", "none",
                  "train_data.max_length",
                  "none is set there; here rows are cut after 1024 tokens: "
                  "set it to the model's positions");
    }
    const char* const kind = method == "kto"        ? "UNPAIRED"
                             : IsPreference(method) ? "PREFERENCE"
                             : method == "grpo"     ? "PROMPT"
                             : method == "pt"       ? "TEXT"
                                                    : "";
    WriteSources(kind, draft);
  }
  ResolveEvaluations(draft);
  const bool in_order = draft->Flag("@no_shuffle") ||
                        (draft->Has("@shuffle") && !draft->Flag("@shuffle"));
  draft->Set("train_data.shuffle", in_order ? "false" : "true",
             draft->Origins({"@no_shuffle", "@shuffle"}));
  const double held = draft->Number("@val_size", 0);
  if (held > 0 && held < 1) {
    draft->Copy("@val_size", "train_data.validation_fraction");
  } else if (held >= 1) {
    draft->Differ("@val_size",
                  "a number of rows: set train_data.validation_fraction");
  }
  ResolveTokenizer(draft);
  CopyHowToRead(draft);
}

}  // namespace capstan::import
