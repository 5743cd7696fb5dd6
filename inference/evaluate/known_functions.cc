// SPDX-License-Identifier: Apache-2.0
#include "inference/evaluate/known_functions.h"

#include <algorithm>
#include <ctime>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "base/json.h"
#include "base/status.h"
#include "inference/evaluate/function_forms.h"
#include "inference/evaluate/python_source.h"
#include "inference/evaluate/row_field.h"

namespace capstan::evaluate {
namespace {

using Json = nlohmann::ordered_json;

struct AggregationForm {
  const char* name;  // for whoever reads the table
  uint64_t digest;
  const char* aggregation;
};
constexpr AggregationForm kAggregations[] = {
    {"afrixnli weighted_f1_score", 0xd6d30e94a6a2b7cf, "weighted_f1"},
    {"aradice micro_f1_score", 0xfddf77e324982e7b, "micro_f1"},
    {"e2lmc loglikelihood_diff", 0x1e286435545aad15, "likelihood_diff"},
    {"basqueglue micro_f1_score", 0x719f888226319911, "micro_f1"},
    {"kobest macro_f1_score", 0x1e233f29bb171a85, "macro_f1"},
    {"portuguese_bench macro_f1", 0x01fc207dd57d87d0, "macro_f1"},
};

// The function that a name means, in the file that it names. Functions that a
// loop defines have the loop's code.
absl::StatusOr<PythonFunction> Find(const FunctionName& function) {
  const size_t dot = function.name.rfind('.');
  if (dot == function.name.npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "is the Python function ", function.name, ", which names no file"));
  }
  const std::string path = absl::StrCat(
      function.folder, "/",
      absl::StrReplaceAll(function.name.substr(0, dot), {{".", "/"}}), ".py");
  if (!PathExists(path)) {
    return absl::InvalidArgumentError(absl::StrCat("is the Python function ",
                                                   function.name,
                                                   ", but there is "
                                                   "no ",
                                                   path, " to know it by"));
  }
  for (const std::string& name :
       {function.name.substr(dot + 1), std::string("process_functions"),
        std::string("_register_subject_filters")}) {
    absl::StatusOr<PythonFunction> found = FindPythonFunction(path, name);
    if (!absl::IsNotFound(found.status())) return found;
  }
  return absl::InvalidArgumentError(absl::StrCat("is the Python function ",
                                                 function.name, ", which ",
                                                 path, " doesn't define"));
}

absl::string_view SourceOf(const RowForm& form) { return form.source; }
template <typename Form>
absl::string_view SourceOf(const Form& /*form*/) {
  return "";
}

template <typename Form>
absl::StatusOr<const Form*> FindForm(absl::Span<const Form> forms,
                                     const PythonFunction& function,
                                     const FunctionName& name,
                                     const char* advice) {
  const auto found =
      std::find_if(forms.begin(), forms.end(), [&](const Form& form) {
        return IsFormOf(form.digest, SourceOf(form), function);
      });
  if (found != forms.end()) return &*found;
  return absl::UnimplementedError(absl::StrFormat(
      "is the Python function %s, whose code (digest %016x, with its constants "
      "%016x) isn't among those known here, and Python isn't run: %s",
      name.name, function.digest, function.whole_digest, advice));
}

}  // namespace

bool IsFormOf(uint64_t digest, absl::string_view source,
              const PythonFunction& function) {
  if (!absl::StrContains(source, "constants")) {
    return digest == function.whole_digest;
  }
  return digest == function.digest || digest == function.inner_digest;
}

absl::StatusOr<RowFunction> NewRowFunction(const RowForm& form,
                                           const Json& constants,
                                           const std::string& function) {
  if (form.kind == RowForm::kCode) return form.code;
  CAPSTAN_ASSIGN_OR_RETURN(
      const std::shared_ptr<const jinja::Template> source,
      ParseRowTemplate(form.kind == RowForm::kValue
                           ? absl::StrCat("{{ (", form.source, ") | tojson }}")
                           : form.source));
  const Json fixed = {{"constants", constants}, {"function", function}};
  return RowFunction(
      [form, source, fixed](const Json& row) -> absl::StatusOr<Json> {
        Json variables = row;
        variables["row"] = row;
        variables.update(fixed);
        CAPSTAN_ASSIGN_OR_RETURN(const jinja::Rendered rendered,
                                 source->Render(variables, std::time(nullptr)));
        if (form.kind == RowForm::kText) return Json(rendered.text);
        Json value = ParseJson<Json>(rendered.text);
        if (!value.is_discarded()) return value;
        return absl::InvalidArgumentError(
            absl::StrCat("the row isn't as ", form.name, " expects it"));
      });
}

absl::StatusOr<RowFunction> FindRowFunction(const FunctionName& name) {
  CAPSTAN_ASSIGN_OR_RETURN(const PythonFunction function, Find(name));
  CAPSTAN_ASSIGN_OR_RETURN(
      const RowForm* form,
      FindForm(RowForms(), function, name,
               "write what it makes of each row into the data, and a template "
               "here"));
  return NewRowFunction(*form, function.constants,
                        name.name.substr(name.name.rfind('.') + 1));
}

absl::StatusOr<ResultFunction> FindResultFunction(const FunctionName& name) {
  CAPSTAN_ASSIGN_OR_RETURN(const PythonFunction function, Find(name));
  CAPSTAN_ASSIGN_OR_RETURN(
      const ResultForm* form,
      FindForm(ResultForms(), function, name,
               "leave it out for the metrics of metric_list, and count in the "
               "samples of --output"));
  return form->function;
}

absl::StatusOr<std::string> FindAggregation(const FunctionName& name) {
  CAPSTAN_ASSIGN_OR_RETURN(const PythonFunction function, Find(name));
  CAPSTAN_ASSIGN_OR_RETURN(
      const AggregationForm* form,
      FindForm(absl::MakeConstSpan(kAggregations), function, name,
               "name an aggregation (mean, f1, ..), and sum up the samples of "
               "--output"));
  return std::string(form->aggregation);
}

}  // namespace capstan::evaluate
