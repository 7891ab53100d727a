#include "compress/compress_options.hpp"

#include "base/option_parse.hpp"

namespace vmem {
namespace {

Option<CompressOptions> compress_option() {
  return define(
      {.name = "compress",
       .values = "off, auto, or a codec: lz4, lz4-2 to lz4-16, zstd, zstd-1 to zstd-19 or zstd-huffman, also behind "
                 "shuffle2+, shuffle4+ or shuffle8+ (bytes of numbers of that width)",
       .help = "How pages are compressed on their way to files; auto: by what makes the way faster, measured, "
               "and otherwise not.",
       .print = [](const CompressOptions& options) { return options.compress; }},
      &CompressOptions::compress, [](std::string_view text) -> Result<std::string> {
        if (text.empty()) return fail(VMEM_ERROR_INVALID_OPTION, "no codec is named");
        return std::string(text);
      });
}

}  // namespace

std::vector<Option<CompressOptions>> compress_options() { return {compress_option()}; }

}  // namespace vmem
