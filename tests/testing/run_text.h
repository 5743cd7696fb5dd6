// SPDX-License-Identifier: Apache-2.0
//
// Configs of small runs, and what tests expect of the trainer's answers.
#ifndef CAPSTAN_TESTS_TESTING_RUN_TEXT_H_
#define CAPSTAN_TESTS_TESTING_RUN_TEXT_H_

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "tests/testing/trainer_process.h"

namespace capstan {

// The slots of a run's config by name, each the text within its braces; "name"
// and "output_dir" hold plain values. A slot of "" is left out.
class RunText {
 public:
  // A Llama of 50,000 parameters learns the first bytes of the corpus, 8
  // sequences of 32 a step, for 6 steps in one rank, `single`, fp32, AdamW.
  RunText();
  // The run of golden/train_llama_corpus.jsonl.
  static RunText Golden();

  RunText& Set(const std::string& slot, const std::string& text);
  // Adds to what a slot holds: later values of a field win.
  RunText& Train(const std::string& more);
  RunText& Batch(int micro, int global);
  // A strategy with that many ranks: by its plugin's name ("zero2"), or the
  // text of the slot ("[plugin/capstan.zero2.Config] { .. }").
  RunText& Strategy(const std::string& text, int ranks);
  RunText& Single();
  RunText& Ddp(int ranks, const std::string& fields = "");
  RunText& Zero2(int ranks, const std::string& fields = "");
  RunText& Fsdp(int ranks, const std::string& fields = "");
  RunText& Precision(const std::string& plugin);
  RunText& Output(const std::string& folder);

  const std::string& output() const { return output_; }
  std::string Text() const;
  // Writes it into a folder of its own and returns the path.
  std::string File() const;

 private:
  std::map<std::string, std::string> slots_;
  std::string train_;
  std::string output_;
};

// A text slot over a file.
std::string TextData(const std::string& path, int sequence_length,
                     const std::string& more = "");

// The first `bytes` of the corpus as a file of the test's own.
std::string CorpusPiece(size_t bytes);

// Runs a config, and sees that all goes well; gives it an output folder if it
// has none. Returns that folder.
std::string MustTrain(RunText run, const TrainerOptions& options = {});

// One line "ERROR .." on standard error and nothing else, with each of `words`
// in it; a non-zero exit code, no stack trace, no process left.
void ExpectOneError(const TrainerResult& result,
                    const std::vector<std::string>& words);

}  // namespace capstan

#endif  // CAPSTAN_TESTS_TESTING_RUN_TEXT_H_
