// Products of four warps (wgmma), as the PTX ISA has them: they read the left matrix from registers and the right one from
// shared memory, and their sums are there once their threads wait for them. Products do not see a register that was changed
// behind the last wgmma.fence, nor shared memory that was written behind the last fence.proxy.async of the thread that wrote
// it. To change an operand while a product is on its way ends the launch.
#pragma once
#include "instructions.h"

namespace emulator {

constexpr uint32_t kGarbage = 0xA5A5A5A5;
// Bits of a matrix descriptor that mean nothing.
constexpr uint64_t kUnused = 0x3FF1C000C000C000;

inline Warpgroup& warpgroup() { return block->warpgroups[self().warp / kWarps]; }

// Products see what this thread has written to shared memory.
inline void fence_proxies() {
  if (!block->view) return;
  for (auto [place, bytes] : self().written) memcpy(block->view + place, block->shared + place, bytes);
  self().written.clear();
}

// Products see registers as they are now, but for sums that are on their way.
inline void fence_registers(int site, uint32_t* const* registers, int count) {
  together(site, [](Warp&) {});
  auto& known = self().known;
  known.resize(count);
  for (int i = 0; i < count; ++i)
    if (!known[i].changing) known[i] = {*registers[i], true, 0};
}

inline Known& known_register(uint32_t* const* registers, int number) {
  auto& all = self().known;
  if (all.empty()) fail("a product of a warpgroup without wgmma.fence before it");
  Known& found = all[number];
  if (!found.changing && found.value != *registers[number])
    fail("a register of a product of a warpgroup was changed after the last wgmma.fence");
  return found;
}

// Rows of 32 bytes, those of the matrix that a descriptor says, each along the sum. A row has two pieces of 16 bytes.
// Swizzled, the number of a piece within 32, 64 or 128 bytes is exchanged by bits 7 and higher of its address.
inline Pieces pieces_of(uint64_t descriptor, int rows) {
  auto bytes = [&](int first) { return uint32_t(descriptor >> first & 0x3FFF) << 4; };
  uint32_t start = bytes(0), leading = bytes(16), stride = bytes(32), mode = descriptor >> 62;
  if (descriptor & kUnused) fail("a matrix descriptor with bits that mean nothing");
  if (descriptor >> 49 & 7) fail("a matrix descriptor with a base offset, which the emulator does not know");
  uint32_t bits = mode ? 4 - mode : 0, width = 16u << bits;
  if (mode && start % (8 * width) >= width)
    fail("a matrix that does not begin at a multiple of " + std::to_string(8 * width) + " bytes");
  Pieces made;
  for (int row = 0; row < rows; ++row)
    for (int piece = 0; piece < 2; ++piece) {
      uint32_t place = start + row / 8 * stride + row % 8 * width + piece * (mode ? 16 : leading);
      place ^= (place >> 7 & ((1u << bits) - 1)) << 4;
      shared(place, 16);
      made.places.push_back(place);
      made.bytes.insert(made.bytes.end(), block->view + place, block->view + place + 16);
    }
  return made;
}

// All warps of a group do the same: each waits here for the others, once it has begun.
inline void meet_warpgroup(int site, uint64_t descriptor) {
  Warpgroup& group = warpgroup();
  if (group.came && group.site != site) fail("warps of a warpgroup meet at different instructions");
  if (group.came && group.descriptor != descriptor) fail("threads of a warpgroup have different matrix descriptors");
  group.site = site;
  group.descriptor = descriptor;
  group.waiting.push_back(block->current);
  if (++group.came == kWarps * kLanes) {
    group.came = 0;
    release(group.waiting);
  }
  pause();
}

// d = a · b + d, or without d, with a (64, 32) in registers and b (32, n) in shared memory, of bytes. A warp has 16 rows,
// as in mma.m16n8k32. registers: all that products of the kernel have; sums, left: numbers of this one's.
template <int n, class A, class B>
inline void multiply_group(int site, uint32_t* const* registers, const int (&sums)[n / 2], const int (&left)[4],
                           uint64_t descriptor, bool is_added) {
  size_t first = self().warp / kWarps * kWarps;
  for (size_t i = first; i < first + kWarps; ++i)
    if (i >= block->warps.size() || block->warps[i].live != kLanes)
      fail("a product of a warpgroup of fewer than 128 threads");
  uint32_t operands[4];
  for (int i = 0; i < 4; ++i) {
    if (known_register(registers, left[i]).changing) fail("a product of a warpgroup reads sums that are on their way");
    operands[i] = *registers[left[i]];
  }
  bring({operands[0], operands[1], operands[2], operands[3], uint32_t(descriptor), uint32_t(descriptor >> 32)});
  together(site, [](Warp& w) {
    w.right = std::make_shared<Pieces>(pieces_of(uint64_t(w.in[0][5]) << 32 | w.in[0][4], n));
    int16_t a[16][32];
    for (int lane = 0; lane < kLanes; ++lane)
      for (int part = 0; part < 4; ++part)
        for (int i = 0; i < 4; ++i)
          a[lane / 4 + part % 2 * 8][lane % 4 * 4 + i + part / 2 * 16] = A(w.in[lane][part] >> 8 * i);
    w.products.resize(16 * n);
    for (int column = 0; column < n; ++column) {
      int16_t b[32];
      for (int k = 0; k < 32; ++k) b[k] = B(w.right->bytes[column * 32 + k]);
      for (int row = 0; row < 16; ++row) {
        int32_t total = 0;
        for (int k = 0; k < 32; ++k) total += int32_t(a[row][k]) * b[k];
        w.products[row * n + column] = total;
      }
    }
  });
  int lane = self().lane;
  for (int i = 0; i < n / 2; ++i) {
    Known& sum = known_register(registers, sums[i]);
    uint32_t before = is_added ? sum.value : 0;
    int row = lane / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane % 4 * 2 + i % 2;
    sum.value = before + uint32_t(warp().products[row * n + column]);
    ++sum.changing;
    *registers[sums[i]] = kGarbage;
  }
  self().open_products.push_back(
      {sums, left, n / 2, {operands[0], operands[1], operands[2], operands[3]}, warp().right});
  meet_warpgroup(site, descriptor);
}

inline void commit_products(int site) {
  together(site, [](Warp&) {});
  self().product_groups.push_back(std::move(self().open_products));
  self().open_products.clear();
}

// Its sums are there, unless a later product changes them once more.
inline void finish_product(uint32_t* const* registers, const Product& done) {
  auto& known = self().known;
  for (int i = 0; i < 4; ++i)
    if (done.operands[i] != *registers[done.left[i]])
      fail("a register was changed while a product of a warpgroup read it");
  const Pieces& right = *done.right;
  for (size_t i = 0; self().lane == 0 && i < right.places.size(); ++i)
    if (memcmp(block->shared + right.places[i], right.bytes.data() + 16 * i, 16))
      fail("shared memory was changed while a product of a warpgroup read it, or without fence.proxy.async before that");
  for (int i = 0; i < done.count; ++i) {
    int number = done.sums[i];
    if (*registers[number] != kGarbage) fail("sums of a product of a warpgroup were changed while it was on its way");
    if (!--known[number].changing) *registers[number] = known[number].value;
  }
}

inline void await_products(int site, uint32_t* const* registers, size_t left) {
  together(site, [](Warp&) {});
  auto& groups = self().product_groups;
  while (groups.size() > left) {
    for (const Product& done : groups.front()) finish_product(registers, done);
    groups.erase(groups.begin());
  }
}

}  // namespace emulator
