// A server of published pages, as readers see it.
#include "sharing/page_server.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "sharing/sharing_fixture.hpp"

namespace vmem::sharing {
namespace {

using rdma::wire::Answer;

class Serving : public Sharing {
 protected:
  // Asks the first node for pages by hand.
  void ask(const SharedPage& page) {
    const SharedRequest request{.page = page};
    const rdma::Call call{.peer = finder.connection(kFirst),
                          .kind = rdma::wire::Kind::fetch_shared,
                          .body = rdma::wire::body_of(request),
                          .reply_bytes = sizeof(SharedReply),
                          .deadline_us = clock.now_us() + 2'000'000};
    ++asked;
    ASSERT_TRUE(reader->calls().begin(call, [this](const rdma::CallEnd& end) {
      if (end.answered) answers.push_back(rdma::wire::read_body<SharedReply>(end.body)->answer);
    }));
  }
  void answered() {
    until([&] { return answers.size() == asked; });
  }
  std::size_t asked = 0;
  std::vector<Answer> answers;
};

TEST_F(Serving, WhatIsNotHereOrNotForTheTenantIsUnknown) {
  ask(page_of(1));
  answered();
  at(kFirst).holder.hold(1);
  at(kFirst).holder.readable = false;
  ask(page_of(1));
  SharedPage malformed = page_of(1);
  malformed.reserved = 1;
  ask(malformed);
  answered();
  EXPECT_THAT(answers, ::testing::Each(Answer::unknown));
  EXPECT_EQ(at(kFirst).holder.asked, 1);
  EXPECT_EQ(at(kFirst).server->statistics().refused, 2u);
}

TEST_F(Serving, OneNodeMayNotFillTheServer) {
  Holder& holder = at(kFirst).holder;
  holder.later = true;
  for (std::uint32_t i = 0; i < PageServer::kMostOfOne + 3; ++i) ask(page_of(1));
  until([&] { return answers.size() == 3; });
  EXPECT_THAT(answers, ::testing::Each(Answer::again));
  EXPECT_EQ(holder.waiting.size(), PageServer::kMostOfOne);
  holder.answer_all();
  answered();
  ask(page_of(1));
  until([&] { return holder.waiting.size() == 1; });
  holder.answer_all();
  answered();
}

TEST_F(Serving, APageIsGivenBackWhenItWasSentAndWhenItsReaderIsGone) {
  Holder& holder = at(kFirst).holder;
  holder.hold(0);
  holder.hold(1);
  finder.where[0] = finder.where[1] = {kFirst};
  EXPECT_EQ(load(0).outcome, tiers::Outcome::done);
  until([&] { return holder.lent_out == 0; });
  EXPECT_EQ(at(kFirst).server->statistics().pages, 1u);
  holder.later = true;
  submit(1);
  until([&] { return holder.waiting.size() == 1; });
  at(kFirst).node->peers().close_incoming();
  at(kFirst).node->turn();
  holder.answer_all();
  EXPECT_EQ(holder.lent_out, 1);
  until([&] { return holder.lent_out == 0; });
  until([&] { return finder.connection(kFirst) != rdma::PeerId{}; });
  holder.later = false;
  until([&] { return tier->statistics().pages == 2; });
}

TEST_F(Serving, APageIsSentToTwoReadersAtTheSameTime) {
  rdma::FaultyTransport* faults = nullptr;
  const auto second = make_node(NodeId{8}, faults);
  Finder second_finder;
  second_finder.links = &second->links();
  second_finder.by_node[kFirst] = second->links().add({address(kFirst)}, second_finder);
  Holder nothing{earlier_key};
  SharedTier second_tier(*second, second_finder, nothing, {.times = times, .workers = 0});
  const auto second_source = second_tier.open({.name = "weights",
                                               .serial = kSerial,
                                               .bytes = kPages * kPage,
                                               .page_bytes = kPage,
                                               .first_granule = 40,
                                               .key = std::make_shared<RegionKey>(*RegionKey::of(key.bytes()))});
  const auto both = [&](auto done) {
    until([&] {
      second->turn();
      return done();
    });
  };
  both([&] { return second_finder.connection(kFirst) != rdma::PeerId{}; });
  Holder& holder = at(kFirst).holder;
  holder.hold(1);
  finder.where[1] = second_finder.where[1] = {kFirst};
  holder.later = true;
  const std::uint64_t id = submit(1);
  std::vector<std::byte> page(kPage);
  tiers::Transfer transfer;
  transfer.slot = *second_source->lay_out(kPage, kPages) + 1;
  transfer.host = page.data();
  transfer.bytes = kPage;
  ASSERT_TRUE(second_tier.submit({&transfer, 1}));
  both([&] { return holder.waiting.size() == 2; });
  holder.answer_all();
  std::vector<tiers::Completion> there;
  both([&] {
    EXPECT_TRUE(second_tier.poll(there));
    return !there.empty() && completion(id) != nullptr;
  });
  EXPECT_EQ(holder.asked, 2);
  EXPECT_TRUE(holds(1));
  EXPECT_EQ(std::memcmp(page.data(), memory[1].get(), kPage), 0);
}

TEST_F(Serving, AServerThatEndsWaitsForPagesInPreparation) {
  Holder& holder = at(kFirst).holder;
  holder.hold(0);
  holder.later = true;
  ask(page_of(0));
  until([&] { return holder.waiting.size() == 1; });
  std::atomic<bool> ended = false;
  std::thread ender([&] {
    at(kFirst).server.reset();
    ended = true;
  });
  EXPECT_FALSE(ended);
  holder.answer_all();
  ender.join();
  EXPECT_EQ(holder.lent_out, 0);
}

}  // namespace
}  // namespace vmem::sharing
