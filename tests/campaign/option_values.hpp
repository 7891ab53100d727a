// Values for the options of the table: valid, at a limit, mutated, absurd.
#pragma once

#include <string>
#include <vector>

#include "runtime/model_plan.hpp"
#include "runtime/options/options.hpp"

namespace vmem::test {

// Files, folders and sockets that options may name; they live as long as the object.
class Places {
 public:
  Places();
  ~Places();
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  std::string in(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }
  // Any kind of place, most of them wrong for any option.
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
  // A value that the option accepts on a machine of two GPUs with 256 MiB each and 512 MiB of host
  // memory, if the other options allow it.
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
