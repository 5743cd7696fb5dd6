// SPDX-License-Identifier: Apache-2.0
#include "desk/compare/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <set>

namespace capstan {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ComparedRun Run(const std::string& strategy, int processes,
                ComparedRun::Status status) {
  ComparedRun run;
  run.id = strategy + "-" + std::to_string(processes);
  run.strategy = strategy;
  run.precision = "fp32";
  run.processes = processes;
  run.status = status;
  run.bounds.loss = 1e-5;
  run.bounds.grad_norm = 1e-4;
  run.bounds.step_time = 1.5;
  return run;
}

// A reference, a run out of bounds, one that failed and one skipped.
Comparison Sample() {
  Comparison comparison;
  comparison.name = "a </script> & <b>";
  comparison.max_steps = 3;
  comparison.global_batch_size = 16;
  comparison.precisions.emplace_back();
  comparison.precisions[0].name = "fp32";

  ComparedRun single = Run("single", 1, ComparedRun::Status::kCompleted);
  single.measured.loss = {3.0, 2.0, 1.0};
  single.measured.grad_norm = {1.0, 1.0, 1.0};
  single.measured.tokens_per_second = 12345.0;
  ComparedRun ddp = Run("ddp", 2, ComparedRun::Status::kCompleted);
  ddp.measured = single.measured;
  ddp.measured.loss[1] = 2.5;
  ddp.measured.grad_norm[2] = std::numeric_limits<double>::quiet_NaN();
  ddp.measured.bytes_sent = 3.0 * 1024 * 1024;
  ddp.measured.communication_seconds = 0.010;
  ddp.measured.exposed_seconds = 0.004;
  ddp.measured.memory = {{"parameters", 100.0, 110.0},
                         {"total", 4.0 * 1024 * 1024, absl::nullopt}};
  ComparedRun failed = Run("zero2", 2, ComparedRun::Status::kFailed);
  failed.reason = "it broke | badly";
  ComparedRun skipped = Run("single", 2, ComparedRun::Status::kSkipped);
  skipped.reason = "one rank only";
  comparison.runs = {single, ddp, failed, skipped};
  Compare(&comparison);
  return comparison;
}

TEST(JunitTest, EachRunIsATestCase) {
  const std::string xml = ReportJunit(Sample());
  EXPECT_THAT(
      xml,
      AllOf(HasSubstr("<testsuite name=\"a &lt;/script&gt; &amp; &lt;b&gt;\" "
                      "tests=\"4\" failures=\"2\" skipped=\"1\">"),
            HasSubstr("name=\"single fp32 on 1 rank\"/>"),
            HasSubstr("name=\"ddp fp32 on 2 ranks\"><failure message=\"ddp "
                      "fp32 on 2 ranks: "),
            HasSubstr("<failure message=\"zero2 fp32 on 2 ranks failed: it "
                      "broke | badly\"/></testcase>"),
            HasSubstr("<skipped message=\"one rank only\"/>")));
}

TEST(ReportJsonTest, Schema) {
  const json report = json::parse(ReportJson(Sample()));
  EXPECT_EQ(report["passed"], false);
  EXPECT_EQ(report["problems"].size(), 4);
  EXPECT_EQ(report["max_steps"], 3);
  EXPECT_EQ(report["global_batch_size"], 16);
  const json& precision = report["precisions"][0];
  EXPECT_EQ(precision["name"], "fp32");
  EXPECT_EQ(precision["reference"], "single-1");
  EXPECT_TRUE(precision["from_first"].is_null());

  ASSERT_EQ(report["runs"].size(), 4);
  const json& ddp = report["runs"][1];
  EXPECT_EQ(ddp["status"], "completed");
  EXPECT_EQ(ddp["folder"], "runs/ddp-2");
  EXPECT_EQ(ddp["reference"], "single-1");
  EXPECT_EQ(ddp["bounds"], json({{"loss", 1e-5},
                                 {"grad_norm", 1e-4},
                                 {"bit_identical", false},
                                 {"step_time", 1.5},
                                 {"own_curve", nullptr},
                                 {"peak_memory", nullptr}}));
  EXPECT_EQ(ddp["loss"], json({3.0, 2.5, 1.0}));
  EXPECT_TRUE(ddp["grad_norm"][2].is_null());
  EXPECT_EQ(ddp["loss_delta"]["max"], 0.25);
  EXPECT_EQ(ddp["loss_delta"]["max_step"], 2);
  EXPECT_EQ(ddp["loss_delta"]["values"], json({0.0, 0.25, 0.0}));
  EXPECT_TRUE(ddp["grad_norm_delta"]["max"].is_null()) << "not finite";
  EXPECT_EQ(ddp["tokens_per_second"], 12345.0);
  EXPECT_EQ(ddp["bytes_sent_per_step"], 3.0 * 1024 * 1024);
  EXPECT_EQ(ddp["communication_seconds"], 0.010);
  EXPECT_EQ(ddp["exposed_communication_seconds"], 0.004);
  EXPECT_EQ(ddp["memory"]["parameters"]["measured"], 110.0);
  EXPECT_TRUE(ddp["memory"]["total"]["measured"].is_null());
  EXPECT_TRUE(report["runs"][0]["bytes_sent_per_step"].is_null()) << "unknown";

  EXPECT_EQ(report["runs"][2]["status"], "failed");
  EXPECT_EQ(report["runs"][2]["reason"], "it broke | badly");
  EXPECT_EQ(report["runs"][3]["status"], "skipped");
  EXPECT_EQ(report["runs"][3]["reason"], "one rank only");
}

TEST(ReportTest, SamplesAreNotCalledTokens) {
  Comparison comparison = Sample();
  for (ComparedRun& run : comparison.runs) run.measured.unit = "samples";
  const json report = json::parse(ReportJson(comparison));
  EXPECT_EQ(report["unit"], "samples");
  EXPECT_EQ(report["runs"][1]["samples_per_second"], 12345.0);
  EXPECT_FALSE(report["runs"][1].contains("tokens_per_second"));
  const std::string text = ReportMarkdown(comparison);
  EXPECT_THAT(text, HasSubstr("| samples/s |"));
  EXPECT_THAT(text, Not(HasSubstr("tokens")));
}

TEST(ReportMarkdownTest, SaysEverything) {
  const std::string text = ReportMarkdown(Sample());
  EXPECT_THAT(
      text,
      AllOf(HasSubstr("**FAILED**"),
            HasSubstr("- ddp fp32 on 2 ranks: loss differs"),
            HasSubstr("| single | 1 | 1 | 1.000000 | reference | reference |"),
            HasSubstr("2.5e-01, step 2 **too far**"),
            HasSubstr("not finite, step 3 **too far**"),
            HasSubstr("| ddp | fp32 | 2 | 12,345 | 0 ms | 4.00 MiB | ? | ? | "
                      "3.00 MiB | 6 ms | 4 ms |"),
            HasSubstr("- single fp32 on 2 ranks: one rank only")));
  EXPECT_THAT(text, HasSubstr("zero2 fp32 on 2 ranks failed: it broke"));
}

TEST(ReportMarkdownTest, Passed) {
  Comparison comparison = Sample();
  comparison.problems.clear();
  EXPECT_THAT(ReportMarkdown(comparison),
              AllOf(HasSubstr("**PASSED**"), Not(HasSubstr("FAILED"))));
}

// The text of each element `tag`, with its attributes.
std::vector<std::string> Elements(const std::string& html,
                                  const std::string& tag) {
  std::vector<std::string> found;
  const std::string end = "</" + tag + ">";
  for (size_t at = html.find("<" + tag); at != std::string::npos;
       at = html.find("<" + tag, at)) {
    const size_t stop = html.find(end, at);
    if (stop == std::string::npos) break;
    found.push_back(html.substr(at, stop - at));
    at = stop + end.size();
  }
  return found;
}

TEST(ReportHtmlTest, LoadsNothing) {
  const std::string html = ReportHtml(Sample());
  EXPECT_THAT(html, HasSubstr("<!DOCTYPE html>"));
  for (const char* loader :
       {"<link rel=\"s", "<img", "<iframe", " src=", "@import", "url(",
        "import(", "fetch(", "XMLHttpRequest", "sourceMappingURL"}) {
    EXPECT_THAT(html, Not(HasSubstr(loader)));
  }
  // URLs occur only in Chart.js's comments.
  for (const std::string& script : Elements(html, "script")) {
    if (script.find("Chart.js v") != std::string::npos) continue;
    EXPECT_THAT(script,
                AllOf(Not(HasSubstr("http://")), Not(HasSubstr("https://"))));
  }
  const std::vector<std::string> styles = Elements(html, "style");
  ASSERT_EQ(styles.size(), 1);
  EXPECT_THAT(styles[0], Not(HasSubstr("http")));
}

TEST(ReportHtmlTest, HoldsTheReportAndWhatDrawsIt) {
  const Comparison comparison = Sample();
  const std::string html = ReportHtml(comparison);
  EXPECT_THAT(html, HasSubstr("<title>a &lt;/script&gt; &amp; &lt;b&gt;"));
  EXPECT_THAT(html, Not(HasSubstr("{{")));
  const std::vector<std::string> scripts = Elements(html, "script");
  ASSERT_EQ(scripts.size(), 3) << "a script was ended by its own text";
  const std::string& data = scripts[0];
  EXPECT_EQ(json::parse(data.substr(data.find('>') + 1)),
            json::parse(ReportJson(comparison)));
  EXPECT_THAT(scripts[1], HasSubstr("Released under the MIT License"));
  EXPECT_THAT(scripts[2], HasSubstr("new Chart("));
}

}  // namespace
}  // namespace capstan
