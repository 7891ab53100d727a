// The messages and files of a registry that a node keeps: questions to a server, answers to a
// client, and what a start finds in the store.
#include <map>

#include "cluster/registry/served/namespace_file.hpp"
#include "cluster/registry/served/record_codec.hpp"
#include "cluster/registry/served/registry_server.hpp"
#include "cluster/registry/served/served_registry.hpp"
#include "fuzz/input.hpp"

namespace vmem::cluster {
namespace {

using fuzz::require;

class OneAnswer final : public RequestChannel {
 public:
  void send(std::string) override {}
  void receive(std::vector<std::string>& answers) override { answers.swap(waiting); }
  std::vector<std::string> waiting;
};

void check_codecs(std::string_view bytes) {
  if (const auto question = served::decode_question(bytes))
    require(served::encode(*question) == bytes, "a question has one form");
  if (const auto answer = served::decode_answer(bytes))
    require(served::encode(*answer).size() <= served::kMostMessageBytes, "an answer can be sent");
  if (const auto write = served::decode_write(bytes))
    require(served::encode_write(*write) == bytes, "a write has one form");
  if (const auto records = served::decode_records(bytes))
    require(served::encode_records(*records) == bytes, "records have one form");
  require(!served::decode_namespace("cluster-0", bytes), "a file has the name of its place");
}

void check_server(std::string_view message) {
  const ManualClock clock;
  auto server = RegistryServer::create(clock, {.started_us = 5, .before = RegistryServer::Before::nothing});
  require(server.has_value(), "a server starts");
  for (int copies = 0; copies < 2; ++copies) {
    const std::string answer = (*server)->answer("key", message);
    require(answer.empty() || served::decode_answer(answer).has_value(), "an answer can be read");
    require(answer.size() <= served::kMostMessageBytes, "an answer can be sent");
  }
}

// A session is opened first, so that the bytes can be a write of it.
void check_write(std::string_view bytes) {
  using namespace served;
  const ManualClock clock;
  auto server = RegistryServer::create(clock, {.started_us = 5, .before = RegistryServer::Before::nothing});
  (void)(*server)->answer("key", encode(Question{.client = 1, .number = 0, .cluster = "c", .what = Open{}}));
  if (bytes.empty() || bytes.size() > kPieceBytes) return;
  const std::string question = encode(Question{.client = 1,
                                               .number = 1,
                                               .cluster = "c",
                                               .what = WritePiece{.session = {Incarnation{5}, 1},
                                                                  .order = 1,
                                                                  .total = static_cast<std::uint32_t>(bytes.size()),
                                                                  .offset = 0,
                                                                  .bytes = std::string(bytes)}});
  const std::string answer = (*server)->answer("key", question);
  const auto decoded = decode_answer(answer);
  require(decoded && std::holds_alternative<Outcome>(decoded->what), "a write has an outcome");
  require((*server)->answer("key", question) == answer, "a copy has the same answer");
}

void check_client(std::string_view answer) {
  ManualClock clock;
  OneAnswer channel;
  auto client = ServedRegistry::create(clock, channel, {.cluster = "c", .client = 1});
  std::map<RequestId, std::size_t> kinds;
  for (const RegistryRequest& each :
       {RegistryRequest(ReadPrefix{"a"}), RegistryRequest(Commit{}), RegistryRequest(GrantLease{5}),
        RegistryRequest(RenewLease{LeaseId{3}}), RegistryRequest(EndLease{LeaseId{3}})})
    kinds[(*client)->post(each)] = each.index();
  channel.waiting = {std::string(answer), std::string(answer)};
  std::vector<Reply> replies;
  (*client)->poll(replies);
  clock.advance(1'000'000'000);
  (*client)->poll(replies);
  require(replies.size() == kinds.size(), "each request has one reply");
  for (const Reply& each : replies) {
    const bool error = std::holds_alternative<Error>(each.what);
    require(error || each.what.index() == kinds[each.request] + 1, "a reply is of the request's kind");
    require((each.revision > Revision{}) != (error || std::holds_alternative<Ended>(each.what)),
            "a reply has a revision");
  }
}

}  // namespace
}  // namespace vmem::cluster

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace vmem::cluster;
  vmem::fuzz::Input input(data, size);
  const std::size_t kind = input.below(4);
  const std::string_view bytes = input.text();
  if (kind == 0) check_codecs(bytes);
  if (kind == 1) check_server(bytes);
  if (kind == 2) check_write(bytes);
  if (kind == 3) check_client(bytes);
  return 0;
}
