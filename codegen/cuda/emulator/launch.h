// What the stand-in driver and the translated kernels tell each other.
#pragma once
#include <cstdint>

namespace emulator {

struct Dim {
  unsigned x, y, z;
};

// As the stand-in driver calls a kernel. order: a seed for the order of threads; 0 takes them as they are numbered.
// share: of the blocks that run, spread over all of them; the first and the last one are always among them. left_out:
// grows by the bytes that the others would store, were each of them like the fullest of those that run. digits: that are
// kept of sums of FP8, as chips of compute capability 8.9 keep 13; 0: those of float32.
struct Launch {
  Dim grid, block;
  unsigned dynamic, order;
  void** arguments;
  double share;
  uint64_t* left_out;
  int digits;
};

}  // namespace emulator
