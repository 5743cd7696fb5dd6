// SPDX-License-Identifier: Apache-2.0
#include "desk/init/ask.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "desk/generate/text_view.h"
#include "desk/init/raw_terminal.h"
#include "trainer/metrics/console.h"

namespace capstan::init {
namespace {

constexpr char kCtrlD = 4;
constexpr char kEscape = 27;

// Longest of the answers' texts.
size_t Width(const std::vector<Answer>& answers) {
  size_t width = 0;
  for (const Answer& answer : answers) {
    width = std::max(width, answer.text.size());
  }
  return width;
}

std::string Row(const Answer& answer, size_t width) {
  return answer.meaning.empty()
             ? answer.text
             : absl::StrCat(answer.text,
                            std::string(width + 2 - answer.text.size(), ' '),
                            answer.meaning);
}

}  // namespace

Asker::Asker(int in, int out, bool takes_proposals)
    : in_(in),
      out_(out),
      terminal_(isatty(in) == 1 && Console(out).terminal()),
      takes_proposals_(takes_proposals) {}

int Asker::ReadByte() {
  unsigned char byte = 0;
  ssize_t count = 0;
  do {
    count = read(in_, &byte, 1);
  } while (count < 0 && errno == EINTR);
  return count == 1 ? byte : -1;
}

absl::optional<std::string> Asker::ReadLine() {
  std::string line;
  for (int byte = ReadByte(); byte != '\n'; byte = ReadByte()) {
    if (byte < 0 && line.empty()) {
      takes_proposals_ = true;
      Console(out_).Write("\n");
      return absl::nullopt;
    }
    if (byte < 0) break;
    line += static_cast<char>(byte);
  }
  return std::string(absl::StripAsciiWhitespace(line));
}

std::string Asker::Choose(const std::string& question,
                          const std::vector<Answer>& answers, size_t proposed) {
  if (takes_proposals_) return answers[proposed].text;
  const size_t chosen = terminal_ ? ChooseByKeys(question, answers, proposed)
                                  : ChooseByNumber(question, answers, proposed);
  return answers[chosen].text;
}

size_t Asker::ChooseByKeys(const std::string& question,
                           const std::vector<Answer>& answers, size_t chosen) {
  const Console console(out_);
  const size_t width = Width(answers);
  const auto draw = [&] {
    std::string text;
    for (size_t i = 0; i < answers.size(); ++i) {
      // A line that wrapped would be more than one to go back over.
      const std::string row = TerminalLines(
          absl::StrCat("  ", Row(answers[i], width)), console.Columns() - 1)[0];
      absl::StrAppend(&text, "\x1b[2K", i == chosen ? "\x1b[7m" : "", row,
                      "\x1b[0m\n");
    }
    console.Write(text);
  };
  const std::string up = absl::StrCat("\x1b[", answers.size(), "A\r");
  // First: who sees the question may type.
  const RawTerminal raw(in_);
  console.Write(absl::StrCat("\x1b[1m",
                             TerminalLines(question, console.Columns() - 1)[0],
                             "\x1b[0m\n"));
  draw();
  for (;;) {
    const int key = ReadByte();
    if (key < 0 || key == kCtrlD) takes_proposals_ = true;
    if (key < 0 || key == kCtrlD || key == '\n' || key == '\r') break;
    const size_t digit = static_cast<size_t>(key - '1');
    if (digit < answers.size()) chosen = digit;
    pollfd more = {in_, POLLIN, 0};
    if (key == kEscape && poll(&more, 1, /*milliseconds=*/50) == 1 &&
        ReadByte() == '[') {
      const int arrow = ReadByte();
      if (arrow == 'A' && chosen > 0) --chosen;
      if (arrow == 'B' && chosen + 1 < answers.size()) ++chosen;
    }
    console.Write(up);
    draw();
  }
  // The list gives way to what was chosen.
  console.Write(absl::StrCat(
      up, "\x1b[A\x1b[J",
      TerminalLines(absl::StrCat(question, " ", answers[chosen].text),
                    console.Columns() - 1)[0],
      "\n"));
  return chosen;
}

size_t Asker::ChooseByNumber(const std::string& question,
                             const std::vector<Answer>& answers,
                             size_t proposed) {
  const Console console(out_);
  std::string text = absl::StrCat(question, "\n");
  const size_t width = Width(answers);
  for (size_t i = 0; i < answers.size(); ++i) {
    absl::StrAppend(&text, "  ", i + 1, ") ", Row(answers[i], width), "\n");
  }
  console.Write(text);
  for (;;) {
    console.Write(
        absl::StrCat("1 to ", answers.size(), " [", proposed + 1, "]: "));
    const absl::optional<std::string> line = ReadLine();
    if (!line.has_value() || line->empty()) return proposed;
    size_t number = 0;
    if (absl::SimpleAtoi(*line, &number) && number >= 1 &&
        number <= answers.size()) {
      return number - 1;
    }
    // The answer itself will do.
    for (size_t i = 0; i < answers.size(); ++i) {
      if (*line == answers[i].text) return i;
    }
    console.Write(
        absl::StrCat("\"", PrintableText(*line), "\" is none of these. "));
  }
}

std::string Asker::Line(
    const std::string& question, const std::string& proposed,
    const std::function<std::string(const std::string&)>& problem) {
  const Console console(out_);
  while (!takes_proposals_) {
    console.Write(absl::StrCat(
        question, proposed.empty() ? "" : absl::StrCat(" [", proposed, "]"),
        ": "));
    const absl::optional<std::string> line = ReadLine();
    if (!line.has_value() || line->empty()) break;
    const std::string wrong = problem(*line);
    if (wrong.empty()) return *line;
    console.Write(absl::StrCat(PrintableText(wrong), "\n"));
  }
  return proposed;
}

}  // namespace capstan::init
