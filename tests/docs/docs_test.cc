// SPDX-License-Identifier: Apache-2.0
//
// The commands that README.md and docs/*.md show, read from there and given to
// the trainer: most run as they are, in a folder with small files of the names
// that the docs use, the rest in the way that kNotAsWritten says.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "tests/testing/run_folder.h"
#include "tests/testing/run_text.h"

namespace capstan {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

using Words = std::vector<std::string>;

// Commands with `text` in them: what replaces them.
struct Exception {
  const char* text;
  enum { kRunWith, kCheckWith, kNotRun } how;
  Words more;  // added to the words
  const char* why;
};

const Exception kNotAsWritten[] = {
    {"bazelw test", Exception::kNotRun, {}, "runs this test"},
    {"build //:dist", Exception::kNotRun, {}, "tests/dist does"},
    {"hf download", Exception::kNotRun, {}, "there is no network"},
    {"chat_template=llada",
     Exception::kRunWith,
     {"--print_config"},
     "the small model's tokenizer has no tokens for LLaDA's template"},
    {"ad_darkroom",
     Exception::kCheckWith,
     {"--set", "train_data.steps=160", "--set", "train_data.streams=3"},
     "an evaluation plays for minutes; histories of the size are large"},
    {"model=capstan.llada_scratch",
     Exception::kCheckWith,
     {},
     "a step of 4,096 tokens a window takes minutes"},
    {" collect ",
     Exception::kRunWith,
     {"--print_config"},
     "PPO learns for minutes"},
    {" llada --data_dir",
     Exception::kRunWith,
     {"--print_config"},
     "its model has the vocabulary of another text"},
    {" import ", Exception::kNotRun, {}, "desk/import's test has such files"},
    {"sweep.pbtxt", Exception::kNotRun, {}, "tests/end_to_end/sweep_test does"},
    {" compare ",
     Exception::kRunWith,
     {"--set", "train.max_steps=2", "--set", "schedule.warmup_steps=1"},
     "its runs, 14, are longer"},
    {" --generate=100",
     Exception::kRunWith,
     {"--max_new_tokens=2"},
     "a hundred answers take a minute"},
    {" convert ",
     Exception::kNotRun,
     {},
     "tests/end_to_end/convert_test does, with files that it writes"},
    {" export ", Exception::kNotRun, {}, "tests/end_to_end/export_test does"},
    {" audit ", Exception::kNotRun, {}, "tests/end_to_end/audit_test does"},
    {" forget ", Exception::kNotRun, {}, "tests/end_to_end/forget_test does"},
    {" fit ", Exception::kNotRun, {}, "tests/end_to_end/fit_test does"},
    {" who ", Exception::kNotRun, {}, "tests/end_to_end/who_test does"},
    {" runs ", Exception::kNotRun, {}, "tests/end_to_end/runs_test does"},
    {" track ",
     Exception::kNotRun,
     {},
     "tests/end_to_end/track_test does, with runs that it writes"},
    {" watch ",
     Exception::kNotRun,
     {},
     "it runs until it is told to end; tests/end_to_end/watch_test does"},
    {" serve ",
     Exception::kNotRun,
     {},
     "it runs until it is told to end; tests/end_to_end/serve_test does"},
    {"run.pbtxt", Exception::kRunWith, {}, "short as it is"},
};

// What docs/preference.md calls dpo.pbtxt.
constexpr char kDpo[] = R"(
name: "dpo"
model { [plugin/capstan.llama.Config] { pretrained: "SmolLM2-135M" } }
objective { [plugin/capstan.dpo.Config] { reference: "pairs.reference" } }
train_data {
  [plugin/capstan.chat.Config] {
    path: "pairs.jsonl" tokenizer: "SmolLM2-135M" kind: PREFERENCE
  }
}
strategy { [plugin/capstan.ddp.Config] {} }
precision { [plugin/capstan.fp32.Config] {} }
optimizer { [plugin/capstan.adamw.Config] { learning_rate: 1e-4 } }
train { max_steps: 1 }
launch { processes: 2 }
complete: true
)";

// Runs of the trainer that nothing else makes short.
const Words kShort = {"--set", "train.max_steps=1", "--set",
                      "train.eval_batches=1"};

// Of a shell: quotes, and variables of `variables`.
Words Split(const std::string& line,
            const std::map<std::string, std::string>& variables) {
  Words words;
  std::string word;
  bool any = false;
  char quote = 0;
  for (size_t i = 0; i <= line.size(); ++i) {
    const char c = i < line.size() ? line[i] : ' ';
    if (quote != 0 ? c == quote : c == '"' || c == '\'') {
      quote = quote == 0 ? c : 0;
      any = true;
    } else if (quote == 0 && (c == ' ' || c == '\t')) {
      if (any) words.push_back(word);
      word.clear();
      any = false;
    } else if (quote == 0 && c == '#' && !any) {
      break;
    } else if (quote != '\'' && c == '$') {
      size_t end = i + 1;
      while (end < line.size() && std::isalnum(line[end])) ++end;
      const auto found = variables.find(line.substr(i + 1, end - i - 1));
      EXPECT_NE(found, variables.end()) << line;
      if (found != variables.end()) word += found->second;
      any = true;
      i = end - 1;
    } else {
      word += c;
      any = true;
    }
  }
  EXPECT_EQ(quote, 0) << line;
  return words;
}

// The trainer's words in a command, what stands for the program taken off;
// false if it isn't the trainer's.
bool TakeProgram(Words* words) {
  for (const Words& program :
       {Words{"bazel", "run", "//trainer", "--"},
        Words{"./bazelw", "run", "//trainer", "--"}, Words{"trainer"}}) {
    if (words->size() > program.size() &&
        std::equal(program.begin(), program.end(), words->begin())) {
      words->erase(words->begin(), words->begin() + program.size());
      return true;
    }
  }
  return false;
}

struct DocCommand {
  std::string place;  // "README.md:12"
  std::string line;
  Words words;  // the trainer's; empty: of another program
};

// What the docs show: fenced commands, and those between backquotes.
struct Shown {
  std::vector<DocCommand> fenced;
  std::vector<DocCommand> in_text;
};

bool IsAssignment(const std::string& word) {
  const size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 &&
         std::all_of(word.begin(), word.begin() + equals,
                     [](char c) { return std::isupper(c) != 0; });
}

void ReadDoc(const std::string& name, Shown* shown) {
  const std::set<std::string> programs = {"bazel", "./bazelw", "trainer", "hf"};
  std::map<std::string, std::string> variables;
  bool in_fence = false;
  int number = 0;
  const Words lines = absl::StrSplit(ReadText(Runfile(name)), '\n');
  for (const std::string& line : lines) {
    const std::string place = absl::StrCat(name, ":", ++number);
    SCOPED_TRACE(place);
    if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "```")) {
      in_fence = !in_fence;
    } else if (in_fence) {
      const std::string first = line.substr(0, line.find(' '));
      if (programs.count(first) == 0 && !IsAssignment(first)) continue;
      DocCommand command = {place, line, Split(line, variables)};
      if (IsAssignment(first)) {
        const std::pair<std::string, std::string> value =
            absl::StrSplit(command.words.at(0), absl::MaxSplits('=', 1));
        variables[value.first] = value.second;
        continue;
      }
      if (!TakeProgram(&command.words)) command.words.clear();
      shown->fenced.push_back(command);
    } else {
      const Words pieces = absl::StrSplit(line, '`');
      for (size_t i = 1; i + 1 < pieces.size(); i += 2) {
        Words words = absl::StrSplit(pieces[i], ' ', absl::SkipEmpty());
        if (TakeProgram(&words)) {
          shown->in_text.push_back({place, pieces[i], words});
        }
      }
    }
  }
  EXPECT_FALSE(in_fence) << name;
}

Shown ReadDocs() {
  Shown shown;
  ReadDoc("README.md", &shown);
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(Runfile("docs"))) {
    if (entry.path().extension() == ".md") {
      names.push_back("docs/" + entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  for (const std::string& name : names) ReadDoc(name, &shown);
  return shown;
}

// A text of the 65 characters of tiny Shakespeare.
std::string Shakespeare() {
  std::string known = "\n !$&',-.3:;?";
  for (char c = 'A'; c <= 'Z'; ++c) known += c;
  for (char c = 'a'; c <= 'z'; ++c) known += c;
  std::string text = known;
  for (char c : ReadText(Runfile("tests/testdata/corpus.txt"))) {
    if (known.find(c) != std::string::npos) text += c;
  }
  // Its tenth has a window of 4,096 tokens.
  EXPECT_GE(text.size(), 200000u);
  text.resize(200000);
  return text;
}

// The folder that a user of the docs would be in.
class DocsTest : public ::testing::Test {
 protected:
  TrainerResult Run(const Words& words) {
    TrainerOptions options;
    options.folder = folder_;
    options.environment = {{"BUILD_WORKING_DIRECTORY", folder_},
                           {"BUILD_WORKSPACE_DIRECTORY", folder_}};
    options.input = "Hello!\n";
    options.timeout = 300.0;
    return RunTrainer(words, options);
  }

  void MustRun(const Words& words) {
    const TrainerResult result = Run(words);
    EXPECT_EQ(result.exit_code, 0) << absl::StrJoin(words, " ") << "\n"
                                   << result.err;
  }

  // `name`, and models/`name` for the configs: what a run of `words` makes.
  void MakeModel(const std::string& name, Words words) {
    words.insert(words.end(), kShort.begin(), kShort.end());
    words.insert(words.end(), {"--set", "output_dir=made_" + name});
    MustRun(words);
    fs::create_directories(folder_ + "/models");
    fs::copy(folder_ + "/made_" + name + "/final", folder_ + "/" + name);
    fs::copy(folder_ + "/" + name, folder_ + "/models/" + name);
  }

  void SetUp() override {
    folder_ = NewTestFolder("user");
    for (const char* folder : {"data", "runs/darkroom"}) {
      fs::create_directories(folder_ + "/" + folder);
    }
    for (const char* folder : {"configs", "datasets/samples/tokenizer"}) {
      fs::create_directories(folder_ + "/" + folder);
      fs::copy(Runfile(folder), folder_ + "/" + folder);
    }
    const std::string text = Shakespeare();
    for (const char* name :
         {"my.txt", "shakespeare.txt", "a.txt", "data/text.txt"}) {
      WriteText(folder_ + "/" + name, text);
    }
    // Evaluated as a whole.
    WriteText(folder_ + "/other.txt", text.substr(0, 20000));
    WriteText(folder_ + "/b.jsonl", "{\"text\": \"a row\"}\n");
    const std::string chats =
        ReadText(Runfile("datasets/samples/chats_eval.jsonl"));
    WriteText(folder_ + "/chats.jsonl", chats);
    WriteText(folder_ + "/data/chats.jsonl", chats);
    fs::copy_file(Runfile("plugins/algorithm_distillation/darkroom/testdata/"
                          "history_small.hdf5"),
                  folder_ + "/runs/darkroom/quickstart.hdf5");
    WriteText(folder_ + "/prompts.jsonl", "{\"prompt\": \"A\"}\n\"Be\"\n");
    WriteText(folder_ + "/villages.yaml",
              "task: villages\ndataset_kwargs: {data_files: villages.jsonl}\n"
              "output_type: multiple_choice\ndoc_to_text: question\n"
              "doc_to_target: answer\ndoc_to_choice: [\"a\", \"b\"]\n");
    const std::string village = "{\"question\": \"Who?\", \"answer\": ";
    WriteText(
        folder_ + "/villages.jsonl",
        absl::StrCat(village, "0}\n", village, "1}\n", village, "\"a\"}\n"));
    for (const char* name : {"pairs.jsonl", "pairs_eval.jsonl"}) {
      fs::copy_file(Runfile("datasets/samples/pairs_eval.jsonl"),
                    folder_ + "/" + name);
    }
    WriteText(folder_ + "/dpo.pbtxt", kDpo);
    WriteText(folder_ + "/run.pbtxt", RunText().Train("max_steps: 12").Text());
    MakeModel("SmolLM2-135M",
              {"--config=sft_quickstart.pbtxt", "--set", "model.hidden_size=32",
               "--set", "model.num_hidden_layers=1", "--set",
               "model.max_position_embeddings=2048"});
    MakeModel(
        "LLaDA-8B-Instruct",
        {"--config=llada_quickstart.pbtxt", "--set", "model.d_model=32",
         "--set", "model.n_layers=1", "--set", "model.vocab_size=4100", "--set",
         "model.max_sequence_length=4096", "--set", "train_data.path=my.txt",
         "--set", "train_data.tokenizer.folder=datasets/samples/tokenizer"});
    MustRun({"llada-data", "--text=my.txt", "--output=DATA",
             "--tokenizer=LLaDA-8B-Instruct"});
  }

  void TryCommand(const DocCommand& command);

  // Of `trainer NAME --help`.
  const std::string& Help(const std::string& name) {
    std::string& help = help_[name];
    if (help.empty()) {
      const TrainerResult result = Run({name, "--help"});
      EXPECT_EQ(result.exit_code, 0) << name << ": " << result.err;
      help = result.out + " ";
    }
    return help;
  }

  std::string folder_;
  std::set<std::string> tried_;  // lines
  std::map<std::string, std::string> help_;
};

void DocsTest::TryCommand(const DocCommand& command) {
  SCOPED_TRACE(absl::StrCat(command.place, ": ", command.line));
  // A page may show what another one does.
  if (!tried_.insert(command.line).second) return;
  // Stands for what is left out, and for a count that the user knows.
  Words words;
  for (const std::string& word : command.words) {
    if (word == "..") continue;
    words.push_back(absl::EndsWith(word, "vocab_size=N")
                        ? absl::StrReplaceAll(word, {{"=N", "=69"}})
                        : word);
  }
  for (const Exception& exception : kNotAsWritten) {
    if (!absl::StrContains(command.line, exception.text)) continue;
    if (exception.how == Exception::kNotRun) return;
    if (exception.how == Exception::kCheckWith) {
      words.insert(words.begin(), "check");
    }
    words.insert(words.end(), exception.more.begin(), exception.more.end());
    MustRun(words);
    return;
  }
  ASSERT_FALSE(words.empty()) << "kNotAsWritten says nothing of it";
  if (absl::StartsWith(words[0], "--") || absl::EndsWith(words[0], ".pbtxt")) {
    words.insert(words.end(), kShort.begin(), kShort.end());
  }
  // Files that the docs write more than once.
  for (const std::string& word : words) {
    if (absl::StartsWith(word, "--output=")) {
      fs::remove_all(folder_ + "/" + word.substr(word.find('=') + 1));
    }
  }
  MustRun(words);
}

TEST_F(DocsTest, EveryCommandWorks) {
  const Shown shown = ReadDocs();
  EXPECT_GE(shown.fenced.size(), 30);
  EXPECT_GE(shown.in_text.size(), 10);
  for (const DocCommand& command : shown.fenced) TryCommand(command);
  for (const Exception& exception : kNotAsWritten) {
    EXPECT_TRUE(std::any_of(shown.fenced.begin(), shown.fenced.end(),
                            [&](const DocCommand& command) {
                              return absl::StrContains(command.line,
                                                       exception.text);
                            }))
        << exception.text << " is no longer in the docs";
  }
  // In the text, where they stand for a kind of command: its name and flags.
  for (const DocCommand& command : shown.in_text) {
    SCOPED_TRACE(absl::StrCat(command.place, ": ", command.line));
    const bool named = !absl::StartsWith(command.words[0], "-");
    const std::string& help = Help(named ? command.words[0] : "train");
    for (const std::string& word : command.words) {
      if (!absl::StartsWith(word, "--") || word == "--help") continue;
      // A flag of its own, or one that is named as an objective's field.
      const std::string flag = word.substr(0, word.find('='));
      EXPECT_THAT(help, AnyOf(HasSubstr(absl::StrCat("\n  ", flag, " ")),
                              HasSubstr(absl::StrCat(": ", flag, " "))));
    }
  }
}

}  // namespace
}  // namespace capstan
