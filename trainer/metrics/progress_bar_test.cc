// SPDX-License-Identifier: Apache-2.0
#include "trainer/metrics/progress_bar.h"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace capstan {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

Progress HalfWay() {
  Progress progress;
  progress.step = 50;
  progress.max_steps = 100;
  progress.loss = 2.5;
  progress.lr = 3e-4;
  progress.tokens_per_second = 12345.0;
  progress.seconds_left = 75.0;
  return progress;
}

TEST(ProgressLine, ShowsAllWhereThereIsRoom) {
  EXPECT_EQ(ProgressLine(HalfWay(), 200),
            "[===================>                  ] step  50/100  loss 2.5000"
            "  lr 3.00e-04  12.3 k tokens/s  ETA 1:15");
}

TEST(ProgressLine, OfAGpu) {
  Progress progress = HalfWay();
  progress.skipped = 3;
  progress.mfu = 0.4123;
  progress.gpu_memory = {int64_t{20} << 30, int64_t{66} << 30,
                         int64_t{61} << 30, int64_t{70} << 30};
  const std::string line = ProgressLine(progress, 200);
  EXPECT_THAT(line, HasSubstr("ETA 1:15  skipped 3  MFU 41.2 %  "
                              "GPU 61.0 GiB of 66.0 GiB"));
  // The first to go.
  EXPECT_THAT(ProgressLine(progress, 95), Not(HasSubstr("GPU")));
  EXPECT_THAT(ProgressLine(progress, 95), HasSubstr("skipped 3  MFU 41.2 %"));
}

TEST(ProgressLine, OfAnObjectivesMetric) {
  Progress progress = HalfWay();
  progress.metric = "reward 0.9063";
  EXPECT_THAT(ProgressLine(progress, 100),
              HasSubstr("loss 2.5000  reward 0.9063  lr 3.00e-04"));
  EXPECT_EQ(ProgressLine(progress, 75),
            "step  50/100  loss 2.5000  lr 3.00e-04  12.3 k tokens/s  ETA "
            "1:15");
}

TEST(ProgressLine, FitsAnyWidth) {
  Progress progress = HalfWay();
  progress.skipped = 3;
  progress.mfu = 0.4;
  for (int columns = 0; columns < 120; ++columns) {
    const std::string line = ProgressLine(progress, columns);
    EXPECT_LE(line.size(), columns);
    if (columns >= 11) {
      EXPECT_THAT(line, HasSubstr("step  50/1"));
    }
  }
  EXPECT_EQ(ProgressLine(progress, 30), "step  50/100  loss 2.5000");
  EXPECT_EQ(ProgressLine(progress, 40), "step  50/100  loss 2.5000  ETA 1:15");
}

TEST(ProgressLine, EndsOfTheBar) {
  Progress progress = HalfWay();
  progress.step = 0;
  EXPECT_THAT(ProgressLine(progress, 200), StartsWith("[>   "));
  progress.step = 100;
  EXPECT_THAT(ProgressLine(progress, 200), HasSubstr("=] step 100/100"));
  progress.max_steps = 0;
  EXPECT_THAT(ProgressLine(progress, 200), HasSubstr("=] step 100/0"));
}

// A pseudo-terminal.
class ProgressBarTest : public testing::Test {
 protected:
  ProgressBarTest() {
    setenv("TERM", "xterm", /*overwrite=*/1);
    screen_ = posix_openpt(O_RDWR | O_NOCTTY);
    if (screen_ < 0 || grantpt(screen_) != 0 || unlockpt(screen_) != 0) return;
    terminal_ = open(ptsname(screen_), O_RDWR | O_NOCTTY);
    SetColumns(80);
    facts_.max_steps = 1000;
  }
  void SetUp() override {
    if (terminal_ < 0) GTEST_SKIP() << "no pseudo-terminal here (/dev/pts)";
  }
  ~ProgressBarTest() override {
    close(screen_);
    close(terminal_);
  }

  void SetColumns(int columns) {
    winsize size = {};
    size.ws_row = 24;
    size.ws_col = columns;
    ioctl(terminal_, TIOCSWINSZ, &size);
  }

  std::string TakeScreen() {
    // The kernel delivers output with a short delay.
    constexpr int kQuietMilliseconds = 50;
    std::string text;
    char bytes[65536];
    pollfd screen = {screen_, POLLIN, 0};
    while (poll(&screen, 1, kQuietMilliseconds) > 0) {
      const ssize_t n = read(screen_, bytes, sizeof(bytes));
      if (n <= 0) break;
      text.append(bytes, n);
    }
    return text;
  }

  StepMetrics AtStep(int64_t step) {
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = 1.5;
    metrics.step_seconds = 0.5;
    metrics.tokens_per_second = 1000.0;
    return metrics;
  }

  int screen_ = -1;
  int terminal_ = -1;
  RunFacts facts_;
};

TEST_F(ProgressBarTest, RedrawsOneLineAndNotTooOften) {
  const Console console(terminal_);
  ASSERT_TRUE(console.terminal());
  ProgressBar bar(&console, facts_);
  for (int step = 1; step < 1000; ++step) bar.Step(AtStep(step));
  const std::string drawn = TakeScreen();
  EXPECT_THAT(drawn, StartsWith("\r\x1b[K["));
  EXPECT_THAT(drawn, HasSubstr("step    1/1000"));
  EXPECT_THAT(drawn, Not(HasSubstr("\n")));
  // A thousand steps take far less than half a second.
  EXPECT_LT(drawn.size(), 6 * 80);
  bar.Step(AtStep(1000));
  bar.End();
  const std::string last = TakeScreen();
  EXPECT_THAT(last, HasSubstr("step 1000/1000"));
  EXPECT_THAT(last, EndsWith("\r\n"));
}

TEST_F(ProgressBarTest, FollowsTheWidth) {
  const Console console(terminal_);
  SetColumns(20);
  ProgressBar bar(&console, facts_);
  bar.Step(AtStep(1));
  EXPECT_EQ(TakeScreen(), "\r\x1b[Kstep    1/1000");
}

TEST_F(ProgressBarTest, LinesGoAboveTheBar) {
  const Console console(terminal_);
  {
    ProgressBar bar(&console, facts_);
    bar.PrintAbove("before\n");
    EXPECT_EQ(TakeScreen(), "before\r\n");
    bar.Step(AtStep(1));
    TakeScreen();
    bar.PrintAbove("a note\n");
    EXPECT_THAT(TakeScreen(), StartsWith("\r\x1b[Ka note\r\n\r\x1b[K["));
  }
  // A run that fails leaves the cursor on a line of its own.
  EXPECT_EQ(TakeScreen(), "\r\n");
}

TEST_F(ProgressBarTest, TimeLeftFollowsTheSteps) {
  const Console console(terminal_);
  ProgressBar bar(&console, facts_);
  bar.Step(AtStep(1));
  // 999 steps of half a second.
  EXPECT_THAT(TakeScreen(), HasSubstr("ETA 8:20"));
}

TEST_F(ProgressBarTest, TimeLeftAfterAnEvaluation) {
  const Console console(terminal_);
  facts_.eval_every = 50;
  ProgressBar::Clock::time_point now;
  ProgressBar bar(&console, facts_, [&now] { return now; });
  const auto step = [&](int64_t step) {
    StepMetrics metrics = AtStep(step);
    metrics.step_seconds = 0.049;
    now += std::chrono::milliseconds(49);
    bar.Step(metrics);
  };
  for (int i = 1; i <= 50; ++i) step(i);
  now += std::chrono::milliseconds(600);  // the evaluation
  TakeScreen();
  step(51);
  // 949 steps, and 19 evaluations of 0.6 s more.
  EXPECT_THAT(TakeScreen(), HasSubstr("ETA 0:58"));
}

TEST_F(ProgressBarTest, SamplesWhereThereAreNoTokens) {
  const Console console(terminal_);
  facts_.unit = "samples";
  SetColumns(120);
  ProgressBar bar(&console, facts_);
  bar.Step(AtStep(1));
  EXPECT_THAT(TakeScreen(), HasSubstr("1.00 k samples/s"));
}

// It is known at some steps only.
TEST_F(ProgressBarTest, KeepsTheObjectivesMetric) {
  const Console console(terminal_);
  SetColumns(120);
  ProgressBar bar(&console, facts_);
  StepMetrics metrics = AtStep(1);
  metrics.tagged = {{"train/reward", 0.25}, {"train/entropy", 2.0}};
  bar.Step(metrics);
  EXPECT_THAT(TakeScreen(), HasSubstr("  reward 0.2500  lr"));
  metrics = AtStep(2);
  metrics.tagged = {{"witness_failures", 1.0}};
  bar.Step(metrics);
  bar.End();
  EXPECT_THAT(TakeScreen(), HasSubstr("  reward 0.2500  lr"));
}

}  // namespace
}  // namespace capstan
