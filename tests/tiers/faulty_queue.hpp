// A queue that can fail or shorten requests on their way to the disk.
#pragma once

#include <functional>
#include <memory>

#include "tiers/io/io_queue.hpp"
#include "tiers/scripted_disk.hpp"

namespace vmem::tiers {

class FaultyQueue final : public IoQueue {
 public:
  FaultyQueue(std::unique_ptr<IoQueue> inner, std::function<Fate(const Io&)> decide)
      : inner_(std::move(inner)), decide_(std::move(decide)) {}
  std::uint32_t depth() const override { return inner_->depth(); }
  void push(const Io& io) override {
    const Fate fate = decide_(io);
    if (fate.error != 0 || fate.moves_bytes == 0) return failed_.push_back({io.tag, -fate.error});
    Io shorter = io;
    shorter.bytes = std::min(io.bytes, fate.moves_bytes);
    inner_->push(shorter);
  }
  Status wait(std::vector<IoResult>& ended, std::chrono::microseconds longest) override {
    ended.insert(ended.end(), failed_.begin(), failed_.end());
    if (!failed_.empty()) longest = {};
    failed_.clear();
    return inner_->wait(ended, longest);
  }
  void wake() override { inner_->wake(); }
  std::string describe() const override { return inner_->describe(); }

 private:
  std::unique_ptr<IoQueue> inner_;
  std::function<Fate(const Io&)> decide_;
  std::vector<IoResult> failed_;
};

}  // namespace vmem::tiers
