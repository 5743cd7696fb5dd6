// SPDX-License-Identifier: Apache-2.0
#include "desk/page/page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace capstan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(PageTest, TextsAreNoMarkup) {
  Page page;
  page.title = "<b>&{{STYLE}}";
  page.json = "{\"a\": \"</script><script>alert(1)\"}";
  const std::string html = PageHtml(page);
  EXPECT_THAT(html, AllOf(HasSubstr("<title>&lt;b&gt;&amp;{{STYLE}}</title>"),
                          HasSubstr("\\u003c/script>\\u003cscript>alert(1)"),
                          Not(HasSubstr("</script><script>alert"))));
}

TEST(PageTest, ThePolicyNamesEachScript) {
  Page page;
  page.script = "let a = 1;";
  const std::string one = PageHtml(page);
  page.script = "let a = 2;";
  const std::string two = PageHtml(page);
  const auto policy = [](const std::string& html) {
    const size_t at = html.find("default-src");
    return html.substr(at, html.find('"', at) - at);
  };
  EXPECT_THAT(policy(one), HasSubstr("connect-src 'none'"));
  EXPECT_NE(policy(one), policy(two));
  EXPECT_EQ(policy(one).substr(0, policy(one).rfind(' ')),
            policy(two).substr(0, policy(two).rfind(' ')))
      << "only the page's own script is another";
  page.live = true;
  EXPECT_THAT(policy(PageHtml(page)), HasSubstr("connect-src 'self'"));
}

}  // namespace
}  // namespace capstan
