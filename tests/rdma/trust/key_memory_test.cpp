#include "rdma/trust/key_memory.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <openssl/crypto.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <new>
#include <string>
#include <thread>

#include "rdma/trust/openssl.hpp"
#include "tiers/forbidden_calls.hpp"

namespace vmem::rdma {
namespace {

// The VmFlags line of the mapping around `memory`: "dd" is excluded from core dumps, "wf" is wiped
// on fork.
std::string flags_of(const void* memory) {
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  std::ifstream maps("/proc/self/smaps");
  bool inside = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t first = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &end) == 2) inside = first <= address && address < end;
    if (inside && line.starts_with("VmFlags:")) return line + " ";
  }
  return "";
}

TEST(KeyMemory, IsOutOfCoreDumpsAndWipedOnFork) {
  KeyMemory key(32);
  EXPECT_NE(flags_of(key.bytes().data()).find(" dd "), std::string::npos);
  EXPECT_NE(flags_of(key.bytes().data()).find(" wf "), std::string::npos);
  std::ranges::fill(key.bytes(), 7);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(std::ranges::count(key.bytes(), 0) == 32 ? 1 : 0);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  EXPECT_EQ(key.bytes()[31], 7);
}

TEST(KeyMemory, IsNotHadWhereTheKernelCannotKeepItToThisProcess) {
  std::thread([] {
    ASSERT_TRUE(tiers::forbid(__NR_madvise, EINVAL));
    EXPECT_THROW(KeyMemory(32), std::bad_alloc);
  }).join();
  EXPECT_EQ(KeyMemory(32).bytes().size(), 32u);
}

TEST(KeyMemory, WhatOpenSslAllocatesIsOutOfCoreDumps) {
  ASSERT_TRUE(openssl());
  for (const std::size_t bytes : {16ul, 5'000ul, 300'000ul}) {
    void* memory = OPENSSL_malloc(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_NE(flags_of(memory).find(" dd "), std::string::npos) << bytes;
    std::fill_n(static_cast<unsigned char*>(memory), bytes, 9);
    memory = OPENSSL_realloc(memory, 2 * bytes);
    EXPECT_EQ(static_cast<unsigned char*>(memory)[bytes - 1], 9);
    OPENSSL_free(memory);
  }
}

TEST(KeyMemory, OpenSslIsToldThatMemoryHasRunOut) {
  ASSERT_TRUE(openssl());
  EXPECT_EQ(OPENSSL_malloc(std::size_t{1} << 40), nullptr);
  (void)openssl_words();
}

}  // namespace
}  // namespace vmem::rdma
