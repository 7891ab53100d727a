// The doctor's findings, in words.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace vmem::tools::doctor {

enum class Level {
  ok,
  note,     // works, but the user should know
  problem,  // vmem cannot run, or a tier cannot serve, until it is fixed
};

struct Finding {
  Level level;
  // "driver", "device 0", "host memory": findings with one topic stand together.
  std::string topic;
  std::string text;  // what was found
  std::string fix;   // the remedy; empty if there is none
};

class Report {
 public:
  void ok(std::string topic, std::string text) { add({Level::ok, std::move(topic), std::move(text), {}}); }
  void note(std::string topic, std::string text, std::string fix = {}) {
    add({Level::note, std::move(topic), std::move(text), std::move(fix)});
  }
  void problem(std::string topic, std::string text, std::string fix) {
    add({Level::problem, std::move(topic), std::move(text), std::move(fix)});
  }
  void add(Finding finding) { findings_.push_back(std::move(finding)); }

  const std::vector<Finding>& findings() const { return findings_; }
  bool usable() const;  // no problem was found
  std::string to_text() const;
  nlohmann::json to_json() const;

 private:
  std::vector<Finding> findings_;
};

}  // namespace vmem::tools::doctor
