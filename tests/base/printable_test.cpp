#include "base/printable.hpp"

#include <gtest/gtest.h>

namespace vmem {
namespace {

TEST(Printable, TextStaysAsItIs) {
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("/mnt/größe 1"), "/mnt/größe 1");
}

TEST(Printable, ControlCharactersAreSpelledOut) {
  EXPECT_EQ(printable("a\nb\t\x1b[31m\x7f"), "a\\nb\\x09\\x1b[31m\\x7f");
}

TEST(Printable, OfLongTextBeginAndEndStay) {
  EXPECT_EQ(printable("0123456789", 10), "0123456789");
  EXPECT_EQ(printable("0123456789abc", 10), "01234 [...] 89abc");
}

TEST(Printable, CharactersOfSeveralBytesStayWhole) { EXPECT_EQ(printable("ääääää", 6), "ää [...] ä"); }

}  // namespace
}  // namespace vmem
