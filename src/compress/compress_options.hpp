// Options of this module. Compression of pages.
#pragma once

#include <string>
#include <vector>

#include "base/option.hpp"

namespace vmem {

struct CompressOptions {
  // --compress: off, auto, or a codec for every page; validated by the code that knows the codecs
  std::string compress = "auto";
};

std::vector<Option<CompressOptions>> compress_options();

}  // namespace vmem
