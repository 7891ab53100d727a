// Values for the options of the table: valid, at a limit, mutated, absurd.
#pragma once

#include <string>
#include <vector>

#include "base/options.hpp"
#include "runtime/model_plan.hpp"

namespace vmem::test {

// Files, folders and sockets that options may name, for as long as the object lives.
class Places {
 public:
  Places();
  ~Places();
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  std::string in(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  // Of every kind, most of them wrong for any option.
  std::string any(Random& random) const;
  std::string own(Random& random) const;  // in the folder

 private:
  std::string folder_;
};

struct OptionValue {
  std::string name, value;
};

class OptionValues {
 public:
  OptionValues(const Places& places, Random& random) : places_(places), random_(random) {}
  // One that the option takes on a machine of two GPUs with 256 MiB each and host memory of 512 MiB, where the other
  // options allow it.
  std::string good(const std::string& option);
  std::string any(const OptionDefinition& option);
  // A name of the table, or nearly so.
  std::string any_name();
  std::string mutated(std::string text);

 private:
  std::string bad_size();
  std::string bad_word();
  std::string bad_list(const std::string& option);
  std::string bad_address();

  const Places& places_;
  Random& random_;
};

}  // namespace vmem::test
