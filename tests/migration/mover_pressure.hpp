// More pages wanted than fit: a fixture for tests of what the mover does then.
#pragma once

#include <memory>

#include "migration/mover_harness.hpp"

namespace vmem::migration {

class Pressure : public MoverTest {
 protected:
  // Fills an HBM of two pages with pages used by unfinished work on a stream of its own.
  void fill_hbm_with_work() {
    start({.hbm_pages = 2});
    region = &allocate(4);
    a = &actor();
    b = &actor();
    ASSERT_TRUE(acquire(*b, writing(*region, 0, 2)));
    kernel = std::make_unique<Gate>(*driver, b->stream);
    fill(*b, writing(*region, 0, 2), 1);
    release(*b, writing(*region, 0, 2));
  }
  // GPU progress that frees no frame.
  void progress(Actor& on) {
    finish_work(on);
    steps(2);
  }
  Region* region = nullptr;
  Actor* a = nullptr;
  Actor* b = nullptr;
  std::unique_ptr<Gate> kernel;
  void TearDown() override {
    kernel.reset();
    MoverTest::TearDown();
  }
};

}  // namespace vmem::migration
