#include "server/columns.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/support/make_column.h"

namespace replay::server {
namespace {

using test::MakeColumn;

std::string Shown(const Columns& columns) {
  columns.CheckInvariants();
  std::string text;
  for (const auto& [name, count] : columns.CountsByName()) text += name + "=" + std::to_string(count) + " ";
  return text + std::to_string(columns.count()) + " of " + std::to_string(columns.bytes()) + " bytes";
}

TEST(Columns, OfAnItemAreFoundByName) {
  Columns columns;
  const Frame a = MakeColumn({.name = "a"}), b = MakeColumn({.name = "b", .length = 4});
  columns.Put(3, a);
  columns.Put(3, b);
  columns.Put(7, a);
  EXPECT_EQ(a.data(), columns.Find(3, "a")->data());
  EXPECT_EQ(b.data(), columns.Find(3, "b")->data());
  EXPECT_TRUE(columns.Has(7, "a"));
  EXPECT_FALSE(columns.Has(7, "b"));
  EXPECT_FALSE(columns.Has(7, "c"));
  EXPECT_FALSE(columns.Has(8, "a"));
  EXPECT_EQ("a=2 b=1 3 of " + std::to_string(2 * a.size() + b.size()) + " bytes", Shown(columns));
}

TEST(Columns, AreReplacedByName) {
  Columns columns;
  columns.Put(0, MakeColumn({.name = "a", .length = 100}));
  const Frame later = MakeColumn({.name = "a", .length = 4});
  EXPECT_EQ(later.size() + Frame::kOverheadBytes, columns.HeldBytesWith(0, {&later, 1}));
  columns.Put(0, later);
  EXPECT_EQ(later.data(), columns.Find(0, "a")->data());
  EXPECT_EQ("a=1 1 of " + std::to_string(later.size()) + " bytes", Shown(columns));
  EXPECT_EQ(later.size() + Frame::kOverheadBytes, columns.held_bytes());
}

TEST(Columns, GoWithTheirItem) {
  Columns columns;
  columns.Remove(0);
  columns.Put(0, MakeColumn({.name = "a"}));
  columns.Put(1, MakeColumn({.name = "a"}));
  columns.Remove(0);
  EXPECT_FALSE(columns.Has(0, "a"));
  columns.Remove(0);
  columns.Remove(1);
  EXPECT_EQ("0 of 0 bytes", Shown(columns));
  EXPECT_EQ(0u, columns.held_bytes());
}

TEST(Columns, OnlyThoseThatAreAskedForAreCollected) {
  Columns columns;
  for (const char* name : {"a", "b", "c"}) columns.Put(5, MakeColumn({.name = name}));
  std::vector<ColumnOf> collected;
  columns.Collect(5, 2, std::vector<std::string>{"c", "missing", "a"}, &collected);
  columns.Collect(6, 3, std::vector<std::string>{"c"}, &collected);
  ASSERT_EQ(2u, collected.size());
  EXPECT_EQ(2u, collected[0].frame);
  EXPECT_EQ(columns.Find(5, "c")->data(), collected[0].column.data());
  EXPECT_EQ(columns.Find(5, "a")->data(), collected[1].column.data());
}

TEST(Columns, OfAllItemsHaveNoMoreThan256Names) {
  Columns columns;
  for (uint32_t i = 0; i < kMaxColumnNames; ++i) columns.Put(i, MakeColumn({.name = "n" + std::to_string(i)}));
  const Frame known = MakeColumn({.name = "n7"}), unknown = MakeColumn({.name = "other"});
  EXPECT_EQ("", columns.WhyRefused(std::vector{known, known}));
  EXPECT_EQ("the columns have 1 names that are new to the buffer, which has 256: at most 256 different ones are allowed",
            columns.WhyRefused(std::vector{known, unknown, unknown}));
  columns.Remove(9);  // its name goes with it
  EXPECT_EQ("", columns.WhyRefused(std::vector{ColumnOf{0, unknown}}));
  columns.Put(1, unknown);
  EXPECT_NE("", columns.WhyRefused(std::vector{ColumnOf{0, MakeColumn({.name = "n9"})}}));
  columns.CheckInvariants();
}

}  // namespace
}  // namespace replay::server
