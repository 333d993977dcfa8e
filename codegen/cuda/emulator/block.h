// The threads of a block as fibers of one system thread. They run one at a time, each until it waits: at a barrier for
// the block, at an instruction of a warp for its other lanes. Whatever a GPU leaves undefined ends the launch with a
// message: threads that wait for ever, lanes that meet at different instructions, memory that is not aligned.
#pragma once
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"

namespace emulator {

constexpr int kLanes = 32, kWarps = 4, kMostThreads = 1024, kOperands = 16;
constexpr size_t kStack = 256 << 10, kMostShared = 227 << 10;
// What memory holds before anything is written to it.
constexpr int kPoison = 0xA5;

// An asynchronous copy: it lands when its thread waits for it, at the latest moment that the instruction allows.
struct Copy {
  char* to;
  const char* from;
  int bytes, taken;  // what lies behind the first `taken` bytes becomes zero
};

// What products of a warpgroup know of a register: its value at the last fence, or once those that change it are done.
struct Known {
  uint32_t value;
  bool is_known;
  int changing;
};

// The right matrix of such a product as it was found in shared memory: pieces of 16 bytes.
struct Pieces {
  std::vector<uint32_t> places;
  std::vector<char> bytes;
};

// A product of a warpgroup as one thread has it: its sums are there when the thread waits for it, at the latest moment
// that the instruction allows. sums, left: registers by their numbers. operands: what was in the latter.
struct Product {
  const int *sums, *left;
  int count;
  uint32_t operands[4];
  std::shared_ptr<const Pieces> right;
};

struct Fiber {
  void* stack_pointer;
  char* stack;
  Dim thread;
  int lane, warp;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
  std::vector<Known> known;
  std::vector<Product> open_products;
  std::vector<std::vector<Product>> product_groups;
  std::vector<std::pair<uint32_t, int>> written;  // places in shared memory and bytes, since the last fence of proxies
};

struct Warp {
  int live, came, site, at_barrier, barrier_site;
  uint32_t in[kLanes][kOperands], out[kLanes][kOperands];
  bool present[kLanes];
  std::vector<int> waiting;
  std::vector<int32_t> products;  // of 16 rows
  std::shared_ptr<const Pieces> right;
};

// Four warps that multiply together.
struct Warpgroup {
  int came, site;
  uint64_t descriptor;
  std::vector<int> waiting;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Warpgroup> warpgroups;
  std::vector<int> ready, waiting;
  int live, came, ended, current;
  Dim place, grid, size;
  void* main;
  void (*kernel)(void**);
  void** arguments;
  char* shared;
  char* view;  // shared memory as products of warpgroups see it; nullptr where there are none
  size_t shared_size;
  bool is_counted;
  int digits;
  std::vector<std::pair<uint64_t, int>> stored;  // addresses and bytes
  std::mt19937 order;
  bool is_shuffled;
  std::string problem;
};

inline thread_local Block* block;

extern "C" void emulator_switch(void** save, void* load);
asm(R"(
.text
.weak emulator_switch
.type emulator_switch,@function
emulator_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
)");

inline Fiber& self() { return block->fibers[block->current]; }

// Ends the launch; fibers are left where they are.
[[noreturn]] inline void fail(const std::string& what) {
  Fiber& fiber = self();
  Dim place = block->place;
  block->problem = what + " (thread " + std::to_string(fiber.warp * kLanes + fiber.lane) + " of block " +
                   std::to_string(place.x) + ", " + std::to_string(place.y) + ", " + std::to_string(place.z) + ")";
  void* nowhere;
  emulator_switch(&nowhere, block->main);
  __builtin_unreachable();
}

inline int next_ready() {
  Block& b = *block;
  if (b.ready.empty()) fail("threads wait for others that never come");
  size_t chosen = b.is_shuffled ? b.order() % b.ready.size() : 0;
  int next = b.ready[chosen];
  if (b.is_shuffled) {
    b.ready[chosen] = b.ready.back();
    b.ready.pop_back();
  } else {
    b.ready.erase(b.ready.begin());
  }
  return next;
}

inline void pause() {
  Fiber& from = self();
  int next = next_ready();
  if (&from == &block->fibers[next]) return;
  block->current = next;
  emulator_switch(&from.stack_pointer, self().stack_pointer);
}

inline void release(std::vector<int>& waiting) {
  block->ready.insert(block->ready.end(), waiting.begin(), waiting.end());
  waiting.clear();
}

inline void barrier(int site) {
  Block& b = *block;
  Warp& warp = b.warps[self().warp];
  if (b.ended) fail("a barrier waits for threads that have ended");
  if (warp.at_barrier && warp.barrier_site != site) fail("lanes of a warp wait at different barriers");
  warp.barrier_site = site;
  ++warp.at_barrier;
  b.waiting.push_back(b.current);
  if (++b.came == b.live) {
    b.came = 0;
    for (Warp& each : b.warps) each.at_barrier = 0;
    release(b.waiting);
  }
  pause();
}

// One instruction of a warp: every lane has brought its operands; the last one to come computes for all.
template <class Compute>
inline void together(int site, Compute&& compute) {
  Warp& warp = block->warps[self().warp];
  if (warp.came && warp.site != site) fail("lanes of a warp meet at different instructions");
  warp.site = site;
  warp.present[self().lane] = true;
  warp.waiting.push_back(block->current);
  if (++warp.came == warp.live) {
    compute(warp);
    warp.came = 0;
    std::fill(std::begin(warp.present), std::end(warp.present), false);
    release(warp.waiting);
  }
  pause();
}

inline void finish() {
  Block& b = *block;
  Fiber& fiber = self();
  Warp& warp = b.warps[fiber.warp];
  bool is_open = !fiber.open.empty();
  for (auto& group : fiber.groups) is_open = is_open || !group.empty();
  if (is_open) fail("a thread ends with copies that it never waited for");
  is_open = !fiber.open_products.empty();
  for (auto& group : fiber.product_groups) is_open = is_open || !group.empty();
  if (is_open) fail("a thread ends with products that it never waited for");
  if (b.warpgroups[fiber.warp / kWarps].came) fail("a thread ends while others of its warpgroup wait for it");
  if (warp.came) fail("a lane ends while others wait for it at an instruction of the warp");
  if (b.came) fail("a thread ends while others wait for it at a barrier");
  --b.live;
  --warp.live;
  ++b.ended;
  if (!b.live) emulator_switch(&fiber.stack_pointer, b.main);
  pause();
}

inline void enter() {
  block->kernel(block->arguments);
  finish();
}

inline void prepare(Fiber& fiber, int number, Dim size) {
  fiber.thread = {number % size.x, number / size.x % size.y, number / size.x / size.y};
  fiber.lane = number % kLanes;
  fiber.warp = number / kLanes;
  fiber.open.clear();
  fiber.groups.clear();
  fiber.known.clear();
  fiber.open_products.clear();
  fiber.product_groups.clear();
  fiber.written.clear();
  void** top = reinterpret_cast<void**>(fiber.stack + kStack);
  *--top = nullptr;  // so that the stack is aligned as behind a call
  *--top = reinterpret_cast<void*>(&enter);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  fiber.stack_pointer = top;
}

inline void run_block(Block& b) {
  int threads = b.size.x * b.size.y * b.size.z;
  b.live = threads;
  b.came = b.ended = 0;
  b.ready.clear();
  b.waiting.clear();
  b.warps.resize((threads + kLanes - 1) / kLanes);
  for (size_t i = 0; i < b.warps.size(); ++i) {
    Warp& warp = b.warps[i];
    warp.live = std::min(kLanes, threads - int(i) * kLanes);
    warp.came = warp.at_barrier = 0;
    warp.waiting.clear();
    std::fill(std::begin(warp.present), std::end(warp.present), false);
  }
  b.warpgroups.assign((b.warps.size() + kWarps - 1) / kWarps, {});
  for (int i = 0; i < threads; ++i) {
    prepare(b.fibers[i], i, b.size);
    b.ready.push_back(i);
  }
  memset(b.shared, kPoison, b.shared_size);
  if (b.view) memset(b.view, kPoison, b.shared_size);
  b.current = next_ready();
  emulator_switch(&b.main, self().stack_pointer);
}

inline char* pages(size_t bytes) {
  void* made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made == MAP_FAILED ? nullptr : static_cast<char*>(made);
}

// The numbers of the blocks that run: one drawn from each of as many parts, all of which are equally large.
inline std::vector<uint64_t> chosen_blocks(const Launch& given) {
  uint64_t total = uint64_t(given.grid.x) * given.grid.y * given.grid.z;
  uint64_t count = std::min(total, std::max(uint64_t(2), uint64_t(double(total) * given.share + 0.5)));
  std::mt19937 drawn(given.order);
  std::vector<uint64_t> chosen;
  for (uint64_t part = 0; part < count; ++part) {
    uint64_t start = part * total / count, end = (part + 1) * total / count;
    chosen.push_back(part + 1 == count ? total - 1 : part ? start + drawn() % (end - start) : 0);
  }
  return chosen;
}

// Bytes that the last block stored, each once, to whatever is not shared memory.
inline uint64_t stored_bytes(Block& b) {
  std::sort(b.stored.begin(), b.stored.end());
  uint64_t bytes = 0, end = 0;
  for (auto [address, size] : b.stored) {
    uint64_t behind = std::max(end, address + size);
    bytes += behind - std::max(end, address);
    end = behind;
  }
  b.stored.clear();
  return bytes;
}

// Runs the blocks; what was wrong, or nullptr. fixed: bytes of shared memory that the kernel declares. is_grouped: whether
// it has products of warpgroups.
inline const char* launch(void (*kernel)(void**), const Launch& given, size_t fixed, bool is_grouped) {
  thread_local std::string problem;
  Block b;
  b.size = given.block;
  b.grid = given.grid;
  b.kernel = kernel;
  b.arguments = given.arguments;
  b.digits = given.digits;
  b.is_shuffled = given.order != 0;
  b.order.seed(given.order);
  size_t threads = size_t(b.size.x) * b.size.y * b.size.z;
  b.shared_size = fixed + given.dynamic;
  if (threads < 1 || threads > kMostThreads) return "a block has 1 to 1024 threads";
  if (b.shared_size > kMostShared) return "a block has at most 227 KiB of shared memory";
  b.fibers.resize(threads);
  char* stacks = pages(kStack * threads);
  b.shared = pages(b.shared_size + kPoison);
  b.view = is_grouped ? pages(b.shared_size + kPoison) : nullptr;
  if (!stacks || !b.shared || (is_grouped && !b.view)) return "out of memory";
  for (size_t i = 0; i < threads; ++i) b.fibers[i].stack = stacks + i * kStack;
  block = &b;
  std::vector<uint64_t> chosen = chosen_blocks(given);
  uint64_t others = uint64_t(b.grid.x) * b.grid.y * b.grid.z - chosen.size(), fullest = 0;
  b.is_counted = others > 0;
  for (uint64_t number : chosen) {
    b.place = {unsigned(number % b.grid.x), unsigned(number / b.grid.x % b.grid.y),
               unsigned(number / b.grid.x / b.grid.y)};
    run_block(b);
    if (!b.problem.empty()) break;
    fullest = std::max(fullest, stored_bytes(b));
  }
  *given.left_out += others * fullest;
  block = nullptr;
  munmap(stacks, kStack * threads);
  munmap(b.shared, b.shared_size + kPoison);
  if (b.view) munmap(b.view, b.shared_size + kPoison);
  problem = std::move(b.problem);
  return problem.empty() ? nullptr : problem.c_str();
}

}  // namespace emulator
