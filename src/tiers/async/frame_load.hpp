// A load straight into a frame of HBM, for tiers with an IoThread.
#pragma once

#include <cstdint>
#include <functional>

#include "tiers/async/io_thread.hpp"
#include "tiers/io/frame_reader.hpp"

namespace vmem::tiers {

// Reads transfer.bytes at `offset` of the file into transfer.frame. `ended` runs on the tier's
// thread. There is no second try: the caller can load the page through host memory instead.
void load_into_frame(FrameReader& reader, const FrameReader::File& file, std::uint64_t offset, const Transfer& transfer,
                     IoThread& thread, std::move_only_function<void(Status)> ended);

}  // namespace vmem::tiers
