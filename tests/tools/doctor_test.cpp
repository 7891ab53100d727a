#include "tools/doctor/doctor.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>

namespace vmem::tools::doctor {
namespace {

const Finding* find(const Report& report, const std::string& words) {
  const auto& findings = report.findings();
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& f) { return f.text.find(words) != std::string::npos; });
  return found == findings.end() ? nullptr : &*found;
}

TEST(Doctor, EmulatedMachineIsUsableAndCalledEmulated) {
  const Report report = examine("emulated");
  EXPECT_TRUE(report.usable()) << report.to_text();
  EXPECT_NE(find(report, "emulated driver"), nullptr);
  EXPECT_NE(find(report, "HBM tier"), nullptr);
  EXPECT_NE(find(report, "host tier"), nullptr);
  EXPECT_NE(find(report, "1 TiB of addresses"), nullptr);
}

TEST(Doctor, AbsentDriverIsAProblemWithAFix) {
  const Report report = examine("/nonexistent/libcuda.so.1");
  EXPECT_FALSE(report.usable());
  const Finding* finding = find(report, "/nonexistent/libcuda.so.1");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->level, Level::problem);
  EXPECT_NE(finding->fix, "");
  EXPECT_NE(find(report, "addresses"), nullptr) << "the rest of the machine was not examined";
}

#ifndef __SANITIZE_THREAD__
TEST(Doctor, SaysHowPagesGetToLentHbm) {
  const Report report = examine("emulated");
  const Finding* finding = find(report, "UCX ");
  ASSERT_NE(finding, nullptr);
  EXPECT_EQ(finding->topic, "network");
  EXPECT_NE(find(report, "lent HBM passes pinned staging"), nullptr) << report.to_text();
}
#endif

TEST(Doctor, NamesBundledLibrariesWithVersions) {
  const Report report = examine("emulated");
  const Finding* bundled = find(report, "openssl 3.");
  ASSERT_NE(bundled, nullptr);
  EXPECT_EQ(bundled->topic, "bundled libraries");
  EXPECT_EQ(bundled->level, Level::ok);
  // Every entry is a name and a version that begins with a number.
  for (std::size_t at = 0; at < bundled->text.size();) {
    const std::size_t end = std::min(bundled->text.find(", ", at), bundled->text.size());
    const std::string entry = bundled->text.substr(at, end - at);
    const std::size_t space = entry.find(' ');
    ASSERT_NE(space, std::string::npos) << entry;
    EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(entry[space + 1]))) << entry;
    at = end + 2;
  }
}

TEST(Doctor, JsonHoldsEveryFinding) {
  const Report report = examine("emulated");
  const auto json = report.to_json();
  EXPECT_EQ(json["usable"], report.usable());
  ASSERT_EQ(json["findings"].size(), report.findings().size());
  for (const auto& finding : json["findings"]) {
    const std::string level = finding["level"];
    EXPECT_TRUE(level == "ok" || level == "note" || level == "problem") << level;
  }
}

}  // namespace
}  // namespace vmem::tools::doctor
