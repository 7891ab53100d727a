// Another program of a cluster, for tests. It takes one command a line from standard input, and
// says one line for each: "ok ..." or "error STATUS MESSAGE".
//
//   allocate PAGES                      writes version 1 of each
//   publish NAME PAGES VERSION COPIES [READERS]   allocates pages that tell number and version;
//                                       version 0: unwritten ones
//   open NAME WAIT_MS                   says the address and the bytes
//   read PAGE VERSION                   of the last opened or published: compares every word
//   hold                                brings all pages into HBM
//   stats                               pages of published regions: fetched, reused
//   free | close
//   end                                 after vmem_shutdown; without this line, without it
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "vmem/cluster.h"

namespace {

constexpr std::uint64_t kPage = 2u << 20;

std::byte* memory = nullptr;
std::uint64_t pages = 0;

std::vector<std::uint64_t> words_of(std::uint64_t page, std::uint64_t version) {
  std::vector<std::uint64_t> words(kPage / 8);
  std::iota(words.begin(), words.end(), page << 40 | version << 24);
  return words;
}

vmem_status allocate(std::uint64_t count, std::uint64_t version) {
  void* made = nullptr;
  if (const vmem_status status = vmem_malloc(&made, count * kPage, 0, nullptr)) return status;
  memory = static_cast<std::byte*>(made);
  pages = count;
  for (std::uint64_t page = 0; version != 0 && page < pages; ++page)
    if (const vmem_status status = vmem_write(memory + page * kPage, words_of(page, version).data(), kPage))
      return status;
  return VMEM_OK;
}

vmem_status allocate(std::istream& in) {
  std::uint64_t count = 0;
  in >> count;
  return allocate(count, 1);
}

vmem_status publish(std::istream& in) {
  std::string name;
  std::uint64_t count = 0, version = 0;
  vmem_publish_options options{};
  std::string readers;
  in >> name >> count >> version >> options.copies >> readers;
  options.readers = readers.c_str();
  if (const vmem_status status = allocate(count, version)) return status;
  return vmem_publish(memory, name.c_str(), &options);
}

vmem_status open(std::istream& in) {
  std::string name;
  std::uint64_t wait_ms = 0, bytes = 0;
  in >> name >> wait_ms;
  void* opened = nullptr;
  const vmem_status status = vmem_open(&opened, &bytes, name.c_str(), 0, wait_ms * 1000);
  if (status != VMEM_OK) return status;
  memory = static_cast<std::byte*>(opened);
  pages = bytes / kPage;
  return VMEM_OK;
}

vmem_status read(std::istream& in) {
  std::uint64_t page = 0, version = 0;
  in >> page >> version;
  std::vector<std::uint64_t> words(kPage / 8);
  if (const vmem_status status = vmem_read(words.data(), memory + page * kPage, kPage)) return status;
  if (words == words_of(page, version)) return VMEM_OK;
  std::printf("error WRONG page %" PRIu64 " begins with %#" PRIx64 "\n", page, words[0]);
  std::exit(1);
}

vmem_status hold() {
  const vmem_range all{memory, pages * kPage, VMEM_READ, 0};
  if (const vmem_status status = vmem_acquire(&all, 1, nullptr)) return status;
  return vmem_release(&all, 1, nullptr);
}

// Before the line of the answer, on the same one.
vmem_status say_stats() {
  vmem_published_statistics stats{};
  stats.struct_bytes = sizeof(stats);
  if (const vmem_status status = vmem_published_stats(&stats)) return status;
  std::printf("fetched %" PRIu64 " reused %" PRIu64 " ", stats.fetched_pages, stats.reused_pages);
  return VMEM_OK;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<vmem_option> options;
  for (int i = 1; i + 1 < argc; i += 2) options.push_back({argv[i], argv[i + 1]});
  vmem_status status = vmem_init(options.data(), options.size());
  std::string line = "init";
  while (line != "end") {
    if (status == VMEM_OK)
      std::printf("ok %p %" PRIu64 "\n", static_cast<void*>(memory), pages);
    else
      std::printf("error %d %s\n", int(status), vmem_last_error());
    std::fflush(stdout);
    if (!std::getline(std::cin, line)) break;
    std::istringstream in(line);
    std::string command;
    in >> command;
    if (command == "allocate") status = allocate(in);
    if (command == "publish") status = publish(in);
    if (command == "open") status = open(in);
    if (command == "read") status = read(in);
    if (command == "hold") status = hold();
    if (command == "stats") status = say_stats();
    if (command == "free") status = vmem_free(memory, nullptr);
    if (command == "close") status = vmem_close(memory, nullptr, 0);
  }
  if (line == "end") vmem_shutdown();
}
