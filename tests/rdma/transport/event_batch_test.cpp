#include "rdma/transport/event_batch.hpp"

#include <gtest/gtest.h>

#include <new>
#include <vector>

namespace vmem::rdma {
namespace {

// Events of peers 1, 2 and so on.
struct Source {
  std::uint64_t next = 1, left = 0;
  void poll(std::vector<Event>& events) {
    for (; left > 0; --left) events.emplace_back().peer = PeerId{next++};
  }
};

TEST(EventBatch, AreHandledAFewAtATimeInTheirOrder) {
  Source source{.left = 2 * EventBatch::kAtOnce + 1};
  EventBatch batch;
  std::vector<PeerId> handled;
  std::vector<std::size_t> after;
  while (batch.handle_some(source, [&](Event& event) { handled.push_back(event.peer); }))
    after.push_back(handled.size());
  EXPECT_EQ(after,
            (std::vector<std::size_t>{EventBatch::kAtOnce, 2 * EventBatch::kAtOnce, 2 * EventBatch::kAtOnce + 1}));
  for (std::size_t i = 0; i < handled.size(); ++i) EXPECT_EQ(handled[i], PeerId{i + 1});
}

TEST(EventBatch, OneWhoseHandlingThrowsTakesNoOtherWithIt) {
  Source source{.left = 3};
  EventBatch batch;
  std::vector<PeerId> handled;
  const auto handle = [&](Event& event) {
    if (event.peer == PeerId{2}) throw std::bad_alloc();
    handled.push_back(event.peer);
  };
  EXPECT_THROW(batch.handle_some(source, handle), std::bad_alloc);
  EXPECT_TRUE(batch.handle_some(source, handle));
  EXPECT_EQ(handled, (std::vector{PeerId{1}, PeerId{3}}));
}

}  // namespace
}  // namespace vmem::rdma
