#include "tools/doctor/report.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace vmem::tools::doctor {
namespace {

const char* name_of(Level level) {
  switch (level) {
    case Level::ok:
      return "OK";
    case Level::note:
      return "note";
    case Level::problem:
      return "PROBLEM";
  }
  return "";
}

}  // namespace

bool Report::usable() const {
  return std::none_of(findings_.begin(), findings_.end(), [](const Finding& f) { return f.level == Level::problem; });
}

std::string Report::to_text() const {
  std::string text;
  std::string topic;
  for (const Finding& finding : findings_) {
    if (finding.topic != topic) text += fmt::format("{}\n", finding.topic);
    topic = finding.topic;
    text += fmt::format("  {:<8} {}\n", name_of(finding.level), finding.text);
    if (!finding.fix.empty()) text += fmt::format("  {:<8} -> {}\n", "", finding.fix);
  }
  text += usable() ? "\nvmem is usable on this machine.\n"
                   : "\nvmem is not usable on this machine: see the problems above.\n";
  return text;
}

nlohmann::json Report::to_json() const {
  auto list = nlohmann::json::array();
  for (const Finding& finding : findings_) {
    std::string level = name_of(finding.level);
    std::transform(level.begin(), level.end(), level.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    list.push_back({{"level", level}, {"topic", finding.topic}, {"text", finding.text}, {"fix", finding.fix}});
  }
  return {{"usable", usable()}, {"findings", std::move(list)}};
}

}  // namespace vmem::tools::doctor
