#include "tiers/async/frame_load.hpp"

#include <utility>

namespace vmem::tiers {

void load_into_frame(FrameReader& reader, const FrameReader::File& file, std::uint64_t offset, const Transfer& transfer,
                     IoThread& thread, std::move_only_function<void(Status)> ended) {
  FrameReader::Read read;
  read.file = &file;
  read.offset = offset;
  read.bytes = transfer.bytes;
  read.frame = transfer.frame;
  read.device = transfer.device;
  read.done = [&thread, ended = std::move(ended)](Status status) mutable {
    thread.post([ended = std::move(ended), status = std::move(status)]() mutable { ended(std::move(status)); });
  };
  reader.post(std::move(read));
}

}  // namespace vmem::tiers
