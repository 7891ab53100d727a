#include "sharing/shared_jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace vmem::sharing {

using rdma::CallEnd;
using rdma::PeerId;
using rdma::wire::Answer;
using rdma::wire::Kind;
using rdma::wire::Order;
using tiers::CameFrom;
using tiers::Outcome;
using tiers::Workers;
using State = SharedJob::State;

namespace {

constexpr std::uint64_t kAgainUs = 2'000;  // before a source that is busy is asked again

std::uint64_t number(NodeId node) { return static_cast<std::uint64_t>(node); }

}  // namespace

// A worker registers the memory: that may take long, and must delay neither the mover nor the node.
void SharedJobs::begin(const SharedJobRef& job) {
  if (job->own) parts_.finder.gone(job->page);
  job->give_up_us = now_us() + times_.patience_us;
  job->state = State::working;
  jobs_.push_back(job);
  parts_.workers.post(
      [this, job](std::uint32_t) {
        auto slab = parts_.node.transport().register_slab({job->transfer.host, job->transfer.bytes});
        if (slab) {
          job->slab = *std::move(slab);
        } else {
          job->error = std::move(slab).error();
        }
      },
      [this, job](Workers::Ended how) {
        if (how == Workers::Ended::no_memory)
          job->error = {VMEM_ERROR_OUT_OF_MEMORY, ENOMEM, fmt::format("no memory to register {}", words(job->page))};
        prepared(job);
      });
}

void SharedJobs::prepared(const SharedJobRef& job) {
  job->state = State::waiting;
  if (!job->slab) return complete(job, Outcome::failed);
  if (job->earlier == pagetable::Serial{}) return find(job);
  look_for_earlier(job);
}

// ---- the version before ----

// Whatever is the matter with it, the page comes from another node.
void SharedJobs::look_for_earlier(const SharedJobRef& job) {
  job->state = State::working;
  SharedPage page = job->page;
  page.serial = job->earlier;
  parts_.holder.lend(page, [this, job](std::expected<LentPage, Answer> lent) mutable {
    parts_.inbox.post([this, job, lent = std::move(lent)]() mutable {
      job->state = State::waiting;
      if (!lent || lent->bytes.size() != job->page.bytes) return find(job);
      job->before = std::move(*lent);
      job->before_until_us = now_us() + times_.request_us;
      compare(job);
    });
  });
}

void SharedJobs::compare(const SharedJobRef& job) {
  job->state = State::working;
  parts_.workers.post(
      [job](std::uint32_t) { job->known = known_part(job->key->tag_of(job->before->bytes, job->page)); },
      [this, job](Workers::Ended how) {
        job->state = State::waiting;
        if (how != Workers::Ended::done) give_back(*job);
        find(job);
      });
}

void SharedJobs::give_back(SharedJob& job) {
  if (job.before && job.before->give_back) job.before->give_back();
  job.before.reset();
  job.known = 0;
}

void SharedJobs::hurry(std::uint64_t transfer) {
  const auto of = [](const SharedJobRef& job) { return job->transfer.id; };
  const auto found = std::ranges::find(jobs_, transfer, of);
  if (found == jobs_.end()) return;
  (*found)->transfer.ahead = false;
  parts_.node.page_calls().hurry((*found)->call);
}

void SharedJobs::hurry_all() {
  latest_us_ = std::min(latest_us_, now_us() + times_.request_us);
  parts_.node.page_calls().give_up(&parts_.owner, now_us());
}

// ---- finding ----

void SharedJobs::find(const SharedJobRef& job) {
  job->state = State::finding;
  if (job->error.message.empty())
    job->error = {VMEM_ERROR_TIMEOUT, 0, fmt::format("nobody said in time who has {}", words(job->page))};
  parts_.finder.find(job->page, last_fetch_us(*job), [this, weak = std::weak_ptr(job)](Result<PageSources> sources) {
    if (const SharedJobRef found_job = weak.lock()) found(found_job, std::move(sources));
  });
}

void SharedJobs::found(const SharedJobRef& job, Result<PageSources> sources) {
  job->state = State::waiting;
  if (!sources) {
    job->error = std::move(sources).error();
    return complete(job, job->error.status == VMEM_ERROR_LOST ? Outcome::lost : Outcome::failed);
  }
  if (sources->nodes.empty()) {
    std::memset(job->transfer.host, 0, job->transfer.bytes);
    job->came_from = CameFrom::here;
    return complete(job, Outcome::done);
  }
  job->sources = *std::move(sources);
  job->source = 0;
}

// ---- fetching ----

bool SharedJobs::go_on() {
  bool did = false;
  for (auto each = jobs_.begin(); each != jobs_.end();) {
    const SharedJobRef job = *each++;  // completing it erases it
    if (job->state != State::working) did |= advance(job);
  }
  return did;
}

bool SharedJobs::advance(const SharedJobRef& job) {
  if (now_us() >= last_fetch_us(*job)) {
    complete(job, Outcome::failed);
    return true;
  }
  if (job->before && now_us() >= job->before_until_us) give_back(*job);
  if (job->state == State::finding || job->again_us > now_us()) return false;
  for (; job->source < job->sources.nodes.size(); ++job->source) {
    const NodeId node = job->sources.nodes[job->source];
    const PeerId peer = parts_.finder.connection(node);
    if (peer == PeerId{}) {
      job->error = {VMEM_ERROR_TIMEOUT, 0,
                    fmt::format("{} is on node {}, which is not connected", words(job->page), number(node))};
      continue;
    }
    fetch(job, node, peer);
    return true;
  }
  job->again_us = now_us() + kAgainUs;
  find(job);
  return true;
}

void SharedJobs::fetch(const SharedJobRef& job, NodeId from, PeerId peer) {
  const SharedRequest request{.page = job->page, .known = job->known};
  const rdma::Call call{.peer = peer,
                        .kind = Kind::fetch_shared,
                        .body = rdma::wire::body_of(request),
                        .destination = job->slab->memory(),
                        .reply_bytes = sizeof(SharedReply),
                        .owner = &parts_.owner,
                        .order = job->transfer.ahead ? Order::ahead : Order::foreground};
  const rdma::PageCall page{.call = call, .request_us = times_.request_us, .give_up_us = last_fetch_us(*job)};
  job->state = State::working;
  job->call = parts_.node.page_calls().begin(page, [this, job, from](const CallEnd& end) { fetched(job, from, end); });
}

void SharedJobs::fetched(const SharedJobRef& job, NodeId from, const CallEnd& end) {
  job->state = State::waiting;
  const auto reply = end.answered ? rdma::wire::read_body<SharedReply>(end.body) : std::nullopt;
  if (reply && reply->answer == Answer::done && end.landed) {
    give_back(*job);
    return check(job, from, Came::fetched, *reply);
  }
  // A source that says so without having the page is found out: the bytes do not prove its tag.
  if (reply && reply->answer == Answer::same && job->before) return check(job, from, Came::reused, *reply);
  count(&SharedCounters::retries);
  if (!reply) {
    // The node may be back by the time that its turn comes again.
    ++job->source;
    job->error = {VMEM_ERROR_TIMEOUT, 0,
                  fmt::format("{} did not come: the connection to node {} broke", words(job->page), number(from))};
  } else if (reply->answer == Answer::again || reply->answer == Answer::done) {
    job->again_us = now_us() + kAgainUs;
    job->error = {VMEM_ERROR_TIMEOUT, 0, fmt::format("node {} has no time for {}", number(from), words(job->page))};
  } else {
    not_from(job, from, std::string(rdma::wire::answer_words(reply->answer)));
  }
}

// This node does not have the page; the directory hears of it.
void SharedJobs::not_from(const SharedJobRef& job, NodeId node, std::string why) {
  job->error = {VMEM_ERROR_TIMEOUT, 0,
                fmt::format("{} did not come from node {}: {}", words(job->page), number(node), why)};
  parts_.finder.missing(job->page, node);
  ++job->source;
}

// ---- checking ----

void SharedJobs::check(const SharedJobRef& job, NodeId from, Came came, const SharedReply& reply) {
  const auto good = std::make_shared<bool>();
  job->state = State::working;
  parts_.workers.post(
      [job, reply, came, good](std::uint32_t) {
        if (came == Came::reused) std::ranges::copy(job->before->bytes, job->slab->memory().begin());
        *good = job->key->proves(job->slab->memory(), job->page, reply.tag);
        give_back(*job);
      },
      [this, job, from, came, good](Workers::Ended how) {
        job->state = State::waiting;
        if (how == Workers::Ended::done) return checked(job, from, came, *good);
        job->error = {VMEM_ERROR_OUT_OF_MEMORY, ENOMEM, fmt::format("no memory to check {}", words(job->page))};
        complete(job, Outcome::failed);
      });
}

void SharedJobs::checked(const SharedJobRef& job, NodeId from, Came came, bool good) {
  if (!good) {
    count(&SharedCounters::mismatches);
    count(&SharedCounters::retries);
    return not_from(job, from, "its bytes are not those that were published");
  }
  if (came == Came::reused) {
    count(&SharedCounters::reused);
    job->came_from = CameFrom::here;
  } else {
    if (job->sources.last) job->came_from = CameFrom::last_source;
    count(&SharedCounters::pages);
    count(&SharedCounters::bytes, job->page.bytes);
  }
  if (parts_.finder.landed(job->page, job->sources.fetch)) return complete(job, Outcome::done);
  count(&SharedCounters::retries);
  job->error = {
      VMEM_ERROR_TIMEOUT, 0,
      fmt::format("{} arrived from node {} after this node had told others that it does not have it, and is fetched "
                  "again",
                  words(job->page), number(from))};
  find(job);
}

void SharedJobs::complete(const SharedJobRef& job, Outcome outcome) {
  give_back(*job);
  job->slab.reset();
  tiers::Completion completion;
  completion.id = job->transfer.id;
  completion.outcome = outcome;
  completion.came_from = job->came_from;
  if (outcome != Outcome::done) completion.error = job->error;
  jobs_.remove(job);
  parts_.ledger.complete(std::move(completion), tiers::Direction::load);
}

}  // namespace vmem::sharing
