#include "tiers/io/frame_reader.hpp"

#include <mutex>
#include <vector>

#include "base/aside.hpp"

namespace vmem::tiers {

void keep_for_good(std::shared_ptr<FrameReader> reader) {
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::shared_ptr<FrameReader>>;
  const std::lock_guard lock(*mutex);
  kept->push_back(std::move(reader));
}

std::optional<Result<std::unique_ptr<FrameReader::File>>> open_within(std::chrono::microseconds limit,
                                                                      const std::shared_ptr<FrameReader>& reader,
                                                                      int descriptor) {
  auto opened = call_within<Result<std::unique_ptr<FrameReader::File>>>(
      limit, [reader, descriptor] { return reader->open(descriptor); });
  if (!opened) keep_for_good(reader);
  return opened;
}

}  // namespace vmem::tiers
