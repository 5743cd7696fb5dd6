// SPDX-License-Identifier: Apache-2.0
//
// Functions of the Language Model Evaluation Harness's task files (lm_eval
// 0.4.13) as templates, each with the name of the tasks that it is from.
#include "inference/evaluate/function_forms.h"

namespace capstan::evaluate {
namespace {

constexpr RowForm::Kind kText = RowForm::kText;
constexpr RowForm::Kind kValue = RowForm::kValue;
constexpr RowForm::Kind kJson = RowForm::kJson;
constexpr RowForm::Kind kCode = RowForm::kCode;

// The letters' list behind each choice that there is.
constexpr char kOptionLetters[] =
    R"([{% for i in range(5) if row['Option ' ~ (i + 1)] %})"
    R"({% if not loop.first %},{% endif %})"
    R"({{ constants.alpa[i][0] | tojson }}{% endfor %}])";
constexpr char kAlphaLetters[] =
    R"([{% for c in choices %}{% if not loop.first %},{% endif %})"
    R"({{ constants.alpha[loop.index0][0] | tojson }}{% endfor %}])";
constexpr char kLabelLetters[] =
    R"([{% for c in choices %}{% if not loop.first %},{% endif %})"
    R"({{ constants.LABELS[loop.index0][0] | tojson }}{% endfor %}])";

// A prompt of three gaps, for the subject, the question and the choices.
constexpr char kDarijaPrompt[] =
    R"({% set p = constants.PROMPT.split('{}') %}{{p[0]}}{{subject_darija}})"
    R"({{p[1]}}{% if context != '' %}{{context}}{{"\n\n"}}{% endif %})"
    R"({{question}}{{p[2]}}{% for c in choices %})"
    R"({% if not loop.first %}{{"\n"}}{% endif %})"
    R"({{constants.alpha[loop.index0]}} {{c}}{% endfor %}{{p[3]}})";
constexpr char kEgyptianPrompt[] =
    R"({% set p = constants.PROMPT.split('{}') %}{{p[0]}}{{egy_subject}})"
    R"({{p[1]}}{% if context != '' %}{{context}}{{"\n\n"}}{% endif %})"
    R"({{question}}{{p[2]}}{% for c in choices %})"
    R"({% if not loop.first %}{{"\n"}}{% endif %})"
    R"({{constants.alpha[loop.index0]}} {{c}}{% endfor %}{{p[3]}})";
constexpr char kGreekPrompt[] =
    R"({% set p = constants.PROMPT.split('{}') %}{{p[0]}})"
    R"({{constants.subjects_gr.get(subject, subject)}}{{p[1]}}{{question}})"
    R"({{p[2]}}{% for c in choices %})"
    R"({% if not loop.first %}{{"\n"}}{% endif %})"
    R"({{constants.LABELS[loop.index0]}} {{c}}{% endfor %}{{p[3]}})";
constexpr char kArabicPrompt[] =
    R"({% set p = constants.PROMPT.split('{}') %}{{p[0]}}{{Subject}} question)"
    R"({% if Level %} for {{constants.level_en[Level]}}{% endif %})"
    R"({% if Country %} in {{Country}}{% endif %}{{p[1]}})"
    R"({% if Context %}{{Context}}{{"\n\n"}}{% endif %}{{Question}}{{p[2]}})"
    R"({% for i in range(5) %}{% set o = row['Option ' ~ (i + 1)] %})"
    R"({% if not o %}{% break %}{% endif %}{% if i %}{{"\n"}}{% endif %})"
    R"({{constants.alpa[i]}} {{o}}{% endfor %}{{p[3]}})";

// "A: ..", one a line, of the letters that there are choices for.
constexpr char kBasqueReading[] =
    R"(Pasartea: {{context}}{{"\n\n"}}Galdera: {{question}}{{"\n"}})"
    R"({% for c in candidates[:4] %}{{constants.letters[loop.index0]}}: {{c}})"
    R"({{"\n"}}{% endfor %}Erantzuna:)";
constexpr char kBasqueTrivia[] =
    R"(Galdera: {{question}}{{"\n"}})"
    R"({% for c in candidates[:4] %}{{constants.letters[loop.index0]}}: {{c}})"
    R"({{"\n"}}{% endfor %}Erantzuna:)";

// mmlu_pro's questions, with the way to the answer or without.
constexpr char kStepByStep[] =
    R"({{"Question:\n"}}{{question}}{{"\nOptions:\n"}}{% for o in options %})"
    R"({% if loop.index0 < constants.choices | length %})"
    R"({{constants.choices[loop.index0]}}. {{o.strip()}}{{"\n"}}{% endif %})"
    R"({% endfor %}{% if constants.including_answer %})"
    R"({{cot_content.replace("A: Let's think", "Answer: Let's think")}})"
    R"({{"\n\n"}}{% else %}Answer: Let's think step by step.{% endif %})";

// The rows of the subject that the function is named after.
constexpr char kBySubjectCategory[] =
    R"({% for c in constants.CATEGORIES if subject_category == c and)"
    R"( function == 'process_' ~ c.lower().replace(' ', '_') %}{})"
    R"({% else %}null{% endfor %})";
constexpr char kByDomain[] =
    R"({% for c in constants.CATEGORIES if domain == c and function ==)"
    R"( 'process_' ~ c.lower().replace(' & ', '_').replace(' ', '_') %}{})"
    R"({% else %}null{% endfor %})";
constexpr char kBySubject[] =
    R"({% set s = Subject.split('_test.csv')[0] if '_test.csv' in Subject)"
    R"( else Subject.split('_test-')[0] %})"
    R"({% if function == 'process_' ~ s %}{}{% else %}null{% endif %})";

// Winograd's: the gap is an underscore.
constexpr char kGapChoices[] =
    "[sentence.split('_')[0] ~ option1, sentence.split('_')[0] ~ option2]";
constexpr char kBehindGap[] = "sentence.split('_', 1)[1].strip()";
constexpr char kBehindGapSpaced[] =
    "(sentence.split('_', 1)[1].strip() == '.') and '.' or ' ' ~ "
    "sentence.split('_', 1)[1].strip()";
constexpr char kGapAnswer[] = "{'1': 0, '2': 1}[answer]";

// paws-x: spaces before marks, and the two sentences as one goes on.
constexpr char kParaphrases[] =
    R"-({% macro clean(t) %}{{ t.replace(" n't", "n't").replace(" )", ")"))-"
    R"-(.replace("( ", "(").replace('" ', '"').replace(' "', '"'))-"
    R"-(.replace(" '", "'").replace(" .", ".").replace(" ,", ",").strip() }})-"
    R"-({% endmacro %}{% if not sentence1 or not sentence2 %}null{% else %})-"
    R"-({% set a = clean(sentence1) %}{% set b = clean(sentence2) %})-"
    R"-({{ {'sentence1': a[:-1] if a.endswith('.') or a.endswith(',') or)-"
    R"-( a.endswith(';') else a, 'sentence2': b[0].lower() ~ b[1:]} | tojson }})-"
    R"-({% endif %})-";

constexpr char kWinogradOptions[] =
    R"({% set t = text.replace('  ', ' ') %}{% macro normal(option) %})"
    R"({% set o = option ~ "'s" if pronoun.lower() in)"
    R"( ['my', 'his', 'her', 'our', 'their'] else option %})"
    R"({% set p = o.split()[0] %}{% if t[pronoun_loc - 2] != '.' and p in)"
    R"( constants.upper_pronouns %}{{ o.replace(p, p.lower()) }})"
    R"({% else %}{{ o }}{% endif %}{% endmacro %})"
    R"({{ {'text': t, 'options': [normal(options[0]), normal(options[1])] +)"
    R"( options[2:]} | tojson }})";

constexpr char kScoredChoices[] =
    R"({% if has_image or not target_scores or)"
    R"( 1 not in target_scores.values() | list %}null{% else %})"
    R"({{ {'input': input.strip(), 'choices': target_scores.keys() | list,)"
    R"( 'gold': (target_scores.values() | list).index(1)} | tojson }})"
    R"({% endif %})";

constexpr char kFourLabels[] =
    "none if choices.label | length != 4 else {'question': question, "
    "'choices': {'text': choices.text, 'label': ['A', 'B', 'C', 'D']}, "
    "'answerKey': answerKey if answerKey in ['A', 'B', 'C', 'D'] else "
    "['A', 'B', 'C', 'D'][(answerKey | int) - 1]}";

constexpr char kSixOptions[] =
    R"({% set extra = ([row.E] if row.E else []) + ([row.F] if row.F else []))"
    R"( %}{% set names = ['A', 'B', 'C', 'D'] + (['E'] if row.E else []) +)"
    R"( (['F'] if row.F else []) %}{{ {'questions': question, 'choices':)"
    R"( [row.A, row.B, row.C, row.D] + extra, 'goal': names.index(answer)})"
    R"( | tojson }})";

constexpr char kMutual[] =
    R"({% macro clean(t) %}{{ t.replace(" '", "'").replace(" \n", "\n"))"
    R"(.replace("\n ", "\n").replace(" n't", "n't").replace('`` ', '"'))"
    R"(.replace("''", '"').replace(" :", ":").replace(" ;", ";"))"
    R"(.replace(" !", "!").replace(" ?", "?").replace(" ,", ","))"
    R"(.replace(" .", ".") }}{% endmacro %}{"article": )"
    R"({{ clean(article) | tojson }}, "options": [{% for o in options %})"
    R"({% if not loop.first %},{% endif %}{{ clean(o) | tojson }})"
    R"({% endfor %}]})";

// A question with all its columns but three as choices.
constexpr char kColumnsAsChoices[] =
    R"({% set keys = row.keys() | reject('in', ['query', 'label',)"
    R"( '__few_shots']) | list %}{% set text %}{{constants.instruction}})"
    R"(السؤال: {{query}}{{"\n"}}{% for k in keys %}{{loop.index0}}) )"
    R"({{row[k]}}{{"\n"}}{% endfor %}الإجابة:{% endset %})"
    R"({"query": {{ text | string | tojson }}, "choices": [{% for k in keys %})"
    R"({% if not loop.first %},{% endif %}{{ row[k] | tojson }}{% endfor %}],)"
    R"( "gold": {{ label | int }}})";

constexpr char kFlights[] =
    R"({% set text %}{{constants.question}}User Criteria: {{query}}{{"\n\n"}})"
    R"({% for c in 'ABCDE' %}{% if not loop.first %}{{"\n"}}{% endif %})"
    R"( Option {{c}}: {{row['Option ' ~ c]}}{{"\n"}}{% endfor %}{% endset %})"
    R"([{"criteria": {{ text | string | tojson }}, "choices": [)"
    R"({% for c in 'ABCDE' %}{% if not loop.first %},{% endif %})"
    R"({{ ('The answer is Option ' ~ c) | tojson }}{% endfor %}], "gold": )"
    R"({{ ('The answer is Option ' ~ Answer) | tojson }}}])";

constexpr char kAradice[] =
    R"({% set n = namespace(options=[]) %}{% for c in 'ABCDE' %})"
    R"({% if options.get(c) is none or c not in options %}{% break %})"
    R"({% endif %}{% set n.options = n.options +)"
    R"( [constants.alpa_ar[loop.index0] ~ ' ' ~ options[c]] %}{% endfor %})"
    R"({% set meta = constants.subject_ar[Subject] ~)"
    R"( (' ' ~ constants.level_ar[Level] if Level else '') ~)"
    R"( (' ' ~ constants.country_ar[Country] if Country else '') %})"
    R"({% set asked = context ~ "\n\n" ~ question if context else question %})"
    R"({{ {'prompt': (constants.PROMPT ~ "\n\nإجابة:"))"
    R"(.replace('[MAIN_META_DATA]', meta).replace('[INPUT]', asked))"
    R"(.replace('[OPTION]', n.options | join("\n")), 'choices':)"
    R"( constants.all_choices[:n.options | length], 'target':)"
    R"( ['A', 'B', 'C', 'D', 'E'].index(row['Answer Key'])} | tojson }})";

constexpr char kConversation[] =
    R"({{story}}{{"\n\n"}}{% set known = answers.input_text[:-1] %})"
    R"({% for q in questions.input_text %}Q: {{q}}{{"\n\n"}})"
    R"({% if loop.index0 < known | length %}A: {{known[loop.index0]}})"
    R"({{"\n\n"}}{% else %}A:{% endif %}{% endfor %})";

constexpr RowForm kForms[] = {
    {"alghafa process_docs", 0x03ba0f6bcf25123e, kJson, kColumnsAsChoices,
     nullptr},
    {"aradice arabicmmlu process_docs", 0x5f34f0d8480293f1, kJson, kAradice,
     nullptr},
    {"careqa doc_to_text", 0x64ddc610bccc5a7c, kText,
     R"({% if question is none %})"
     R"({{ raise_exception('the row has no question') }}{% endif %})"
     R"(Question: {{question}}{{"\nChoices:\nA. "}}{{op1}}{{"\nB. "}}{{op2}})"
     R"({{"\nC. "}}{{op3}}{{"\nD. "}}{{op4}}{{"\nAnswer:"}})",
     nullptr},
    {"careqa doc_to_target", 0xe7474719ddbc5fb9, kValue, "cop - 1", nullptr},
    {"coqa doc_to_text", 0x2cb7bf329552aa36, kText, kConversation, nullptr},
    {"coqa doc_to_target", 0x1c7ff81b9639134f, kCode, nullptr, CoqaTarget},
    {"groundcocoa process_docs", 0xaf19b6e407967168, kJson, kFlights, nullptr},
    {"indicparam doc_to_text", 0x68d5366983422640, kText,
     R"(Question: {{question_text}}{{"\nA. "}}{{option_a}}{{"\nB. "}})"
     R"({{option_b}}{{"\nC. "}}{{option_c}}{{"\nD. "}}{{option_d}})"
     R"({{"\nAnswer:"}})",
     nullptr},
    {"indicparam doc_to_choice", 0x517fa00f29e2177d, kValue,
     "['A', 'B', 'C', 'D']", nullptr},
    {"indicparam doc_to_target", 0xeb475299d0cdcdb5, kValue,
     "['A', 'B', 'C', 'D'].index(correct_answer.upper())", nullptr},
    {"indicparam process_docs", 0x384b164071e9a3a9, kValue,
     "{} if subject == constants.arguments[0] else none", nullptr},
    {"uncheatable_eval process_docs", 0x237ed5816a8ce5bf, kValue,
     "{} if category == constants.arguments[0] else none", nullptr},
    {"afrixnli doc_to_target", 0x934cdc5d7f25811f, kValue,
     "['True', 'Neither', 'False'][label]", nullptr},
    {"arabicmmlu doc_to_text", 0x040869b49743c460, kText, kArabicPrompt,
     nullptr},
    {"arabicmmlu doc_to_choice", 0xec2c5e9c0592fc17, kJson, kOptionLetters,
     nullptr},
    {"arithmetic process_docs", 0xbb24e71cfed86faa, kValue,
     R"({'context': context.strip().replace("\n\n", "\n"))"
     R"(.replace('Q:', 'Question:').replace('A:', 'Answer:'),)"
     R"( 'completion': completion})",
     nullptr},
    {"c4 doc_to_target", 0x31c190fd5e728b3f, kCode, nullptr, C4Text},
    {"copal_id, xcopa doc_to_text", 0xeb5e55e505a7714f, kText,
     "{{premise.strip()[:-1]}} {{constants.connector[question]}}", nullptr},
    {"copal_id, xcopa doc_to_choice", 0xaa04dda545e504ce, kValue,
     "[choice1[0].lower() ~ choice1[1:], choice2[0].lower() ~ choice2[1:]]",
     nullptr},
    {"super_glue copa doc_to_text", 0x77e85bd3cd765837, kText,
     "{{premise.strip()[:-1]}} "
     "{{{'cause': 'because', 'effect': 'therefore'}[question]}}",
     nullptr},
    {"super_glue copa doc_to_target", 0xf35ce41985495358, kValue,
     "' ' ~ ((choice1 if label == 0 else choice2)[0].lower()) ~ "
     "(choice1 if label == 0 else choice2)[1:]",
     nullptr},
    {"super_glue copa doc_to_choice", 0xb8b1dfa7aa01ce6a, kValue,
     "[' ' ~ choice1[0].lower() ~ choice1[1:], "
     "' ' ~ choice2[0].lower() ~ choice2[1:]]",
     nullptr},
    {"crows_pairs doc_to_choice", 0x7531b5632d7f9b11, kValue,
     "[sent_more, sent_less]", nullptr},
    {"darijahellaswag process_docs", 0xfd438088a0d0ed81, kValue,
     "{'query': activity_label ~ ': ' ~ ctx, 'choices': endings, "
     "'gold': label | int}",
     nullptr},
    {"darijammlu doc_to_text", 0x07823881dffbcf7b, kText, kDarijaPrompt,
     nullptr},
    {"darijammlu doc_to_choice", 0xd6a66baf30e231d3, kJson, kAlphaLetters,
     nullptr},
    {"egymmlu doc_to_text", 0x40d512c8f10772f0, kText, kEgyptianPrompt,
     nullptr},
    {"eus_exams process_docs", 0xbe6aa1f6ec98f371, kValue,
     "{} if answer in [0, 1, 2, 3] and candidates != ['', '', '', ''] else "
     "none",
     nullptr},
    {"eus_reading doc_to_text", 0x275803d95f2e859d, kText, kBasqueReading,
     nullptr},
    {"eus_reading, eus_trivia doc_to_choice", 0x6078a80afe6264d0, kValue,
     "constants.letters[:candidates | length]", nullptr},
    {"eus_trivia doc_to_text", 0xe0b3a1fda69bc475, kText, kBasqueTrivia,
     nullptr},
    {"glianorex doc_to_text", 0x6fa33660da52cce2, kText,
     R"(Question: {{question}}{{"\n"}}{% for k, v in options.items() %})"
     R"({{k}}. {{v}}{{"\n"}}{% endfor %}Answer:)",
     nullptr},
    {"glianorex doc_to_target", 0x4497ea377a0e61db, kValue, "answer_idx",
     nullptr},
    {"global_mmlu process_docs", 0xd7571da3a6d61ae6, kJson, kBySubjectCategory,
     nullptr},
    {"greekmmlu doc_to_text", 0xa764125c68f40421, kText, kGreekPrompt, nullptr},
    {"greekmmlu doc_to_choice", 0xa2b5455317047534, kJson, kLabelLetters,
     nullptr},
    {"hellaswag process_docs", 0x7613d578e5c35176, kCode, nullptr,
     HellaswagRow},
    {"icelandic_winogrande doc_to_target", 0x2bdfe452484ea434, kValue,
     kBehindGapSpaced, nullptr},
    {"include process_docs", 0x82aacfbe1fff1e97, kJson, kByDomain, nullptr},
    {"llama arc_challenge process_docs", 0x1bc3f853d9d08be1, kValue,
     kFourLabels, nullptr},
    {"logiqa doc_to_text", 0x2e26a2c20bcdb5d9, kText,
     R"(Passage: {{context}}{{"\n"}}Question: {{question}}{{"\nChoices:\n"}})"
     R"({% for o in options[:4] %}{{'ABCD'[loop.index0]}}. {{o}}{{"\n"}})"
     R"({% endfor %}Answer:)",
     nullptr},
    {"logiqa doc_to_target", 0x137f1dc2b842d6ea, kValue,
     "['a', 'b', 'c', 'd'].index(label.strip())", nullptr},
    {"mathqa doc_to_choice", 0xd647785e1156212e, kCode, nullptr, MathQaChoices},
    {"medmcqa doc_to_text", 0x9e6501b68698cd2c, kText,
     R"(Question: {{question}}{{"\nChoices:\nA. "}}{{opa}}{{"\nB. "}}{{opb}})"
     R"({{"\nC. "}}{{opc}}{{"\nD. "}}{{opd}}{{"\nAnswer:"}})",
     nullptr},
    {"medqa doc_to_text", 0x6c956571feff3f8f, kText,
     R"(Question: {{sent1}}{{"\nA. "}}{{ending0}}{{"\nB. "}}{{ending1}})"
     R"({{"\nC. "}}{{ending2}}{{"\nD. "}}{{ending3}}{{"\nAnswer:"}})",
     nullptr},
    {"medqa doc_to_target", 0x1a3ff771a430e969, kValue, "label", nullptr},
    {"mlqa process_docs", 0x1b5ef53e24308dc7, kValue,
     "{'context': context, 'question': question, 'answers': answers.text}",
     nullptr},
    {"mmlu_pro doc_to_text", 0x6c251d3647b20ad3, kText, kStepByStep, nullptr},
    {"mmlu_pro doc_to_target", 0xd94865e01e00ddb8, kValue,
     R"(cot_content.replace("A: Let's think step by step. ", ''))", nullptr},
    {"mmlu_pro process_docs", 0x26566ea5b459cc4c, kValue,
     "{} if category == constants.subject else none", nullptr},
    {"mmlu-pro-plus doc_to_text", 0x8ceff12917c48691, kText, kStepByStep,
     nullptr},
    {"mmlusr process_docs", 0x4bfa2c23cc4a6b46, kValue,
     "{'choices': [choice1 or '', choice2 or '', choice3 or '', choice4 or ''],"
     " 'answer': (answer or '').strip()}",
     nullptr},
    {"moral_stories process_docs", 0x973eb6187d97672f, kValue,
     "{'query': norm.capitalize() ~ ' ' ~ situation.capitalize() ~ ' ' ~ "
     "intention.capitalize(), 'choices': [moral_action, immoral_action], "
     "'label': 0}",
     nullptr},
    {"mutual process_docs", 0x791dfc1efa01a788, kJson, kMutual, nullptr},
    {"okapi arc process_docs", 0x0667198ac0ad8298, kCode, nullptr, OkapiArcRow},
    {"openai-mmmlu process_docs", 0x972cf45b794cdf44, kJson, kBySubject,
     nullptr},
    {"paloma doc_to_target", 0x765ccb9cfb04ce78, kValue, "text | string",
     nullptr},
    {"paws-x process_docs", 0x7f855107cc880378, kJson, kParaphrases, nullptr},
    {"physics_gre process_docs", 0x471bd698b61d2140, kJson, kScoredChoices,
     nullptr},
    {"pubmedqa doc_to_text", 0x8405e1641d214731, kText,
     R"(Abstract: {{CONTEXTS | join("\n")}}{{"\n"}}Question: {{QUESTION}})"
     R"({{"\nAnswer:"}})",
     nullptr},
    {"race doc_to_text", 0x4c3036b4c0a1bc35, kCode, nullptr, RaceText},
    {"race doc_to_target", 0x9a6bcde5cbdf07cf, kCode, nullptr, RaceTarget},
    {"race doc_to_choice", 0xc23da342af402e0b, kCode, nullptr, RaceChoices},
    {"tmlu process_docs", 0x232650c8088ef297, kJson, kSixOptions, nullptr},
    {"tmmluplus process_docs", 0xa9de5c29cfbbe7ed, kValue,
     "{'questions': question, 'choices': [row.A, row.B, row.C, row.D], "
     "'goal': ['A', 'B', 'C', 'D'].index(answer)}",
     nullptr},
    {"toxigen doc_to_target", 0xa851aca1b9917895, kValue,
     "1 if toxicity_ai + toxicity_human > 5.5 else 0", nullptr},
    {"tydiqa process_docs", 0xe9a7716442d6b27b, kValue,
     "{'answers': answers.text} if "
     "id.startswith(constants.arguments[0] ~ '-') else none",
     nullptr},
    {"webqs doc_to_choice", 0x532f24855cea458c, kCode, nullptr,
     WebQuestionsChoices},
    {"webqs doc_to_target", 0xd5d042a5f79926f7, kCode, nullptr,
     WebQuestionsTarget},
    {"wikitext doc_to_target", 0x8e5b06fa8dd4cb0f, kCode, nullptr,
     WikitextPage},
    {"winogrande doc_to_text", 0x455cbf11c1607202, kValue, kGapAnswer, nullptr},
    {"winogrande doc_to_target", 0x371223ad67e335ed, kValue, kBehindGap,
     nullptr},
    {"winogrande doc_to_choice", 0x3a0c5bfb4940476b, kValue, kGapChoices,
     nullptr},
    {"wsc273 process_docs", 0xe1eca057c64187b7, kJson, kWinogradOptions,
     nullptr},
    {"xwinograd doc_to_text", 0x3d325342cfae2344, kValue, kGapAnswer, nullptr},
    {"xwinograd doc_to_target", 0x230dccb08df1b046, kValue, kBehindGap,
     nullptr},
    {"xwinograd doc_to_choice", 0x3332ad91563aaa07, kValue, kGapChoices,
     nullptr},
};

constexpr AggregationForm kAggregations[] = {
    {"afrixnli weighted_f1_score", 0xd6d30e94a6a2b7cf, "weighted_f1"},
    {"aradice micro_f1_score", 0xfddf77e324982e7b, "micro_f1"},
    {"e2lmc loglikelihood_diff", 0x1e286435545aad15, "likelihood_diff"},
    {"basqueglue micro_f1_score", 0x719f888226319911, "micro_f1"},
    {"kobest macro_f1_score", 0x1e233f29bb171a85, "macro_f1"},
    {"portuguese_bench macro_f1", 0x01fc207dd57d87d0, "macro_f1"},
};

}  // namespace

absl::Span<const RowForm> RowForms() { return kForms; }

absl::Span<const AggregationForm> AggregationForms() { return kAggregations; }

}  // namespace capstan::evaluate
