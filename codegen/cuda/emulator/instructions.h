// What the instructions of PTX compute that are more than an operator of C++. Registers hold bits.
#pragma once
#include <array>
#include <cfenv>
#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>

#include "block.h"

namespace emulator {

using f16 = _Float16;
template <class T>
constexpr bool is_real = std::is_floating_point_v<T> || std::is_same_v<T, f16>;

// A register, or a number in the text, as a value of a type.
template <class T, class R>
inline T as(R bits) {
  if constexpr (is_real<T>) {
    T value;
    memcpy(&value, &bits, sizeof value);
    return value;
  } else {
    return static_cast<T>(bits);
  }
}

template <class R, class T>
inline void put(R& bits, T value) {
  if constexpr (is_real<T>) {
    bits = 0;
    memcpy(&bits, &value, sizeof value);
  } else {
    bits = static_cast<R>(value);
  }
}

// Memory. Shared memory has addresses from 0 on.
inline uint64_t shared(uint64_t address, int bytes) {
  if (address + bytes > block->shared_size) fail("an address beyond the block's shared memory");
  return reinterpret_cast<uint64_t>(block->shared + address);
}

inline uint64_t generic_of_shared(uint64_t address) { return reinterpret_cast<uint64_t>(block->shared + address); }

inline uint64_t shared_of_generic(uint64_t address) { return address - reinterpret_cast<uint64_t>(block->shared); }

inline uint64_t aligned(uint64_t address, int bytes) {
  if (address % bytes) fail("an address that is not aligned to " + std::to_string(bytes) + " bytes");
  return address;
}

inline void note_store(uint64_t address, int bytes) {
  uint64_t place = shared_of_generic(address);
  if (block->is_counted && place >= block->shared_size) block->stored.push_back({address, bytes});
  if (block->view && place < block->shared_size) self().written.push_back({uint32_t(place), bytes});
}

inline void copy_async(uint64_t to, uint64_t from, int bytes, uint32_t taken) {
  Copy copy{reinterpret_cast<char*>(aligned(shared(to, bytes), bytes)),
            reinterpret_cast<const char*>(aligned(from, bytes)), bytes, int(std::min<uint32_t>(taken, bytes))};
  memset(copy.to, kPoison, bytes);  // until somebody waits, what is there is nobody's to read
  self().open.push_back(copy);
}

inline void commit_copies() {
  self().groups.push_back(std::move(self().open));
  self().open.clear();
}

inline void await_copies(size_t left) {
  auto& groups = self().groups;
  while (groups.size() > left) {
    for (const Copy& copy : groups.front()) {
      memset(copy.to, 0, copy.bytes);
      memcpy(copy.to, copy.from, copy.taken);
      note_store(reinterpret_cast<uint64_t>(copy.to), copy.bytes);
    }
    groups.erase(groups.begin());
  }
}

inline void await_all_copies() {
  commit_copies();
  await_copies(0);
}

// FP8, E4M3: a sign, four bits of exponent, three of fraction, steps of 2^-9 below 2^-6; 127 is no number.
inline double of_e4m3(uint8_t code) {
  static const std::array<double, 256> every = [] {
    std::array<double, 256> made;
    for (int code = 0; code < 256; ++code) {
      int exponent = code >> 3 & 15, fraction = code & 7;
      double size = std::ldexp(exponent ? 8 + fraction : fraction, std::max(exponent, 1) - 10);
      made[code] = (code & 127) == 127 ? NAN : code & 128 ? -size : size;
    }
    return made;
  }();
  return every[code];
}

// The nearest one, halves to even, and from 448 on the largest.
inline uint8_t to_e4m3(float value) {
  if (std::isnan(value)) return 127;
  uint8_t sign = std::signbit(value) ? 128 : 0;
  double size = std::min(std::fabs(double(value)), 448.0);
  int exponent = size ? std::max(std::ilogb(size), -6) : -6;
  int steps = int(std::nearbyint(std::ldexp(size, 3 - exponent)));  // of 2^(exponent − 3): 8 to 16, or less below 2^-6
  return sign | (steps + (exponent + 6) * 8);
}

// Conversions of real numbers to integers saturate; NaN becomes 0.
template <class T>
inline T saturated(double value) {
  using Limits = std::numeric_limits<T>;
  if (std::isnan(value)) return 0;
  if (value <= double(Limits::min())) return Limits::min();
  return value >= double(Limits::max()) ? Limits::max() : T(value);
}

// The smaller or larger one; of a number and NaN the number.
template <class T>
inline T least(T a, T b) {
  if constexpr (is_real<T>) return std::isnan(a) ? b : std::isnan(b) ? a : (a < b || (a == b && std::signbit(a))) ? a : b;
  return std::min(a, b);
}

template <class T>
inline T most(T a, T b) {
  if constexpr (is_real<T>) return std::isnan(a) ? b : std::isnan(b) ? a : (a > b || (a == b && std::signbit(b))) ? a : b;
  return std::max(a, b);
}

inline float flushed(float value) { return std::fpclassify(value) == FP_SUBNORMAL ? std::copysign(0.0f, value) : value; }

struct Fused {
  template <class T>
  T operator()(T a, T b, T c) const {
    return std::fma(a, b, c);
  }
};

// An operation rounded in a direction; what is volatile stays between the changes of the processor's rounding.
template <class Compute, class... T>
__attribute__((noinline)) auto directed(Compute compute, int direction, T... operands) {
  using First = std::common_type_t<T...>;
  volatile First kept[] = {operands...};
  fesetround(direction);
  volatile First made;
  if constexpr (sizeof...(T) == 3)
    made = compute(First(kept[0]), First(kept[1]), First(kept[2]));
  else
    made = compute(First(kept[0]), First(kept[1]));
  fesetround(FE_TONEAREST);
  return First(made);
}

template <class T>
inline T field(T value, uint32_t first, uint32_t length) {  // bfe
  constexpr uint32_t width = sizeof(T) * 8;
  first &= 255;
  length = std::min(length & 255, width);
  if (!length) return 0;
  T sign = value < 0 ? T(-1) : T(0);
  if (first >= width) return sign;
  T moved = value >> first;
  if (length == width) return moved;
  if constexpr (std::is_signed_v<T>) {
    uint32_t top = std::min(first + length, width) - first;
    return top == width ? moved : T(moved << (width - top)) >> (width - top);
  } else {
    return moved & ((T(1) << length) - 1);
  }
}

template <class T>
inline T with_field(T field, T whole, uint32_t first, uint32_t length) {  // bfi
  constexpr uint32_t width = sizeof(T) * 8;
  first &= 255;
  length &= 255;
  if (!length || first >= width) return whole;
  T mask = (length >= width ? T(-1) : (T(1) << length) - 1) << first;
  return (whole & ~mask) | (field << first & mask);
}

inline uint32_t permuted(uint32_t low, uint32_t high, uint32_t places) {  // prmt
  uint64_t both = uint64_t(high) << 32 | low;
  uint32_t made = 0;
  for (int i = 0; i < 4; ++i) {
    uint32_t place = places >> 4 * i & 15;
    uint8_t byte = both >> 8 * (place & 7);
    if (place & 8) byte = byte & 0x80 ? 0xFF : 0;
    made |= uint32_t(byte) << 8 * i;
  }
  return made;
}

inline uint32_t logic(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {  // lop3
  uint32_t made = 0;
  for (int i = 0; i < 8; ++i)
    if (table >> i & 1) made |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
  return made;
}

template <class A, class B>
inline uint32_t dot_bytes(uint32_t a, uint32_t b, uint32_t total) {  // dp4a
  for (int i = 0; i < 4; ++i) total += uint32_t(int32_t(A(a >> 8 * i)) * int32_t(B(b >> 8 * i)));
  return total;
}

template <class A, class B>
inline uint32_t dot_words(uint32_t a, uint32_t b, uint32_t total) {  // dp2a
  for (int i = 0; i < 2; ++i) total += uint32_t(int32_t(A(a >> 16 * i)) * int32_t(B(b >> 8 * i)));
  return total;
}

// Instructions of a warp. Lane 4·g + t is the t-th of its group of four, see the tables of the PTX ISA.
inline Warp& warp() { return block->warps[self().warp]; }

template <size_t n>
inline void bring(const uint32_t (&operands)[n]) {
  std::copy(operands, operands + n, warp().in[self().lane]);
}

inline void require_full(const Warp& warp) {
  if (warp.live != kLanes) fail("an instruction for matrices in a warp of fewer than 32 lanes");
}

inline void require_members(uint32_t mask) {
  uint32_t live = warp().live == kLanes ? ~0u : (1u << warp().live) - 1;
  if ((mask & live) != live) fail("an instruction of the warp that names not all of its lanes");
}

inline bool shuffle(int site, uint32_t& made, uint32_t value, int source, bool is_inside, uint32_t mask) {
  require_members(mask);
  int lane = self().lane;
  bring({value, uint32_t(is_inside ? source : lane)});
  together(site, [](Warp& w) {
    for (int i = 0; i < kLanes; ++i)
      if (w.present[i]) w.out[i][0] = w.present[w.in[i][1]] ? w.in[w.in[i][1]][0] : w.in[i][0];
  });
  made = warp().out[lane][0];
  return is_inside;
}

// shfl: clamp has the width of segments in its upper byte and the bound of the source lane in its lower one.
inline bool shuffle_down(int site, uint32_t& made, uint32_t value, uint32_t by, uint32_t clamp, uint32_t mask) {
  int lane = self().lane, segment = clamp >> 8 & 31, last = (lane & segment) | (clamp & 31 & ~segment);
  return shuffle(site, made, value, lane + int(by & 31), lane + int(by & 31) <= last, mask);
}
inline bool shuffle_up(int site, uint32_t& made, uint32_t value, uint32_t by, uint32_t clamp, uint32_t mask) {
  int lane = self().lane, segment = clamp >> 8 & 31, first = (lane & segment) | (clamp & 31 & ~segment);
  return shuffle(site, made, value, lane - int(by & 31), lane - int(by & 31) >= first, mask);
}
inline bool shuffle_bfly(int site, uint32_t& made, uint32_t value, uint32_t by, uint32_t clamp, uint32_t mask) {
  int lane = self().lane, segment = clamp >> 8 & 31, last = (lane & segment) | (clamp & 31 & ~segment);
  int source = lane ^ int(by & 31);
  return shuffle(site, made, value, source, source <= last, mask);
}
inline bool shuffle_idx(int site, uint32_t& made, uint32_t value, uint32_t from, uint32_t clamp, uint32_t mask) {
  int lane = self().lane, segment = clamp >> 8 & 31, last = (lane & segment) | (clamp & 31 & ~segment);
  int source = (lane & segment) | int(from & 31 & ~segment);
  return shuffle(site, made, value, source, source <= last, mask);
}

// Four matrices (or n) of 8 rows of 16 bytes; lane 8·m + r has the address of row r of matrix m.
template <int n>
inline void load_matrices(int site, uint32_t (&made)[n], uint32_t address) {
  require_full(warp());
  bring({address});
  together(site, [](Warp& w) {
    for (int matrix = 0; matrix < n; ++matrix)
      for (int lane = 0; lane < kLanes; ++lane) {
        uint64_t row = aligned(shared(w.in[matrix * 8 + lane / 4][0], 16), 16);
        memcpy(&w.out[lane][matrix], reinterpret_cast<const char*>(row) + lane % 4 * 4, 4);
      }
  });
  std::copy_n(warp().out[self().lane], n, made);
}

// d = a · b + c with a (16, 32) and b (32, 8) of bytes.
template <class A, class B>
inline void multiply_bytes(int site, uint32_t (&made)[4], const uint32_t (&operands)[10]) {
  require_full(warp());
  bring(operands);
  together(site, [](Warp& w) {
    int16_t a[16][32], b[8][32];
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        int g = lane / 4, k = lane % 4 * 4 + i;
        for (int part = 0; part < 4; ++part) a[g + part % 2 * 8][k + part / 2 * 16] = A(w.in[lane][part] >> 8 * i);
        for (int part = 0; part < 2; ++part) b[g][k + part * 16] = B(w.in[lane][4 + part] >> 8 * i);
      }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int16_t *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        int32_t total = 0;
        for (int k = 0; k < 32; ++k) total += int32_t(row[k]) * column[k];
        w.out[lane][i] = w.in[lane][6 + i] + uint32_t(total);
      }
  });
  std::copy_n(warp().out[self().lane], 4, made);
}

// d = a · b + c with a (16, 64) and b (64, 8) of bytes. Of each four neighbours in a row of a two are given, the others
// are zero; lane 4·g + t has, four bits for each four, the places of those in row g + 8·(t % 2), columns 32·(t / 2) on.
template <class A, class B>
inline void multiply_sparse_bytes(int site, uint32_t (&made)[4], const uint32_t (&operands)[13], uint32_t selector) {
  require_full(warp());
  if (selector) fail("a selector of metadata that is not 0, where all lanes have some");
  bring(operands);
  together(site, [](Warp& w) {
    int16_t a[16][64] = {}, b[8][64];
    for (int row = 0; row < 16; ++row)
      for (int four = 0; four < 16; ++four) {
        uint32_t both = w.in[row % 8 * 4 + row / 8 + four / 8 * 2][12] >> four % 8 * 4 & 15;
        if ((both & 3) >= both >> 2) fail("metadata of a sparse matrix whose places do not ascend");
        for (int which = 0; which < 2; ++which) {
          int kept = four * 2 + which, lane = row % 8 * 4 + kept % 16 / 4;
          a[row][four * 4 + (both >> 2 * which & 3)] = A(w.in[lane][row / 8 + kept / 16 * 2] >> kept % 4 * 8);
        }
      }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int k = 0; k < 16; ++k) b[lane / 4][k / 4 * 16 + lane % 4 * 4 + k % 4] = B(w.in[lane][4 + k / 4] >> k % 4 * 8);
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const int16_t *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        int32_t total = 0;
        for (int k = 0; k < 64; ++k) total += int32_t(row[k]) * column[k];
        w.out[lane][i] = w.in[lane][8 + i] + uint32_t(total);
      }
  });
  std::copy_n(warp().out[self().lane], 4, made);
}

// The first digits of a number, behind the point of one with this exponent.
inline double cut(double value, int exponent, int digits) {
  return std::ldexp(std::trunc(std::ldexp(value, digits - exponent)), exponent - digits);
}

// Products of FP8 and a number, as a chip was measured to add them that keeps few digits (arXiv 2511.10909): of each
// term those behind the point of the largest one, and as many of the sum.
inline double cut_sum(const double* a, const double* b, int count, double before, int digits) {
  auto exponent = [](double value) { return std::max(std::ilogb(value), -6); };
  int top = before ? std::ilogb(before) : -126;
  for (int k = 0; k < count; ++k)
    if (a[k] && b[k]) top = std::max(top, exponent(a[k]) + exponent(b[k]));
  double total = cut(before, top, digits);
  for (int k = 0; k < count; ++k) total += cut(a[k] * b[k], top, digits);
  return total ? cut(total, std::ilogb(total), digits) : 0;
}

// d = a · b + c with a (16, 32) and b (32, 8) of FP8, c and d of float32. Rounded once, or cut as chips cut sums.
inline void multiply_e4m3(int site, uint32_t (&made)[4], const uint32_t (&operands)[10]) {
  require_full(warp());
  bring(operands);
  together(site, [](Warp& w) {
    double a[16][32], b[8][32];
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        int g = lane / 4, k = lane % 4 * 4 + i;
        auto value = [&](int part) { return of_e4m3(uint8_t(w.in[lane][part] >> 8 * i)); };
        for (int part = 0; part < 4; ++part) a[g + part % 2 * 8][k + part / 2 * 16] = value(part);
        for (int part = 0; part < 2; ++part) b[g][k + part * 16] = value(4 + part);
      }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const double *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        double total = as<float>(w.in[lane][6 + i]);
        if (block->digits) {
          for (int k = 0; k < 32; k += 16) total = cut_sum(row + k, column + k, 16, total, block->digits);
        } else {
          for (int k = 0; k < 32; ++k) total += row[k] * column[k];
        }
        put(w.out[lane][i], float(total));
      }
  });
  std::copy_n(warp().out[self().lane], 4, made);
}

// d = a · b + c with a (16, 16) and b (16, 8) of float16, c and d of float32. Rounded once; a GPU rounds in between.
inline void multiply_halves(int site, uint32_t (&made)[4], const uint32_t (&operands)[10]) {
  require_full(warp());
  bring(operands);
  together(site, [](Warp& w) {
    double a[16][16], b[8][16];
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 2; ++i) {
        int g = lane / 4, k = lane % 4 * 2 + i;
        auto value = [&](int part) { return double(as<f16>(uint16_t(w.in[lane][part] >> 16 * i))); };
        for (int part = 0; part < 4; ++part) a[g + part % 2 * 8][k + part / 2 * 8] = value(part);
        for (int part = 0; part < 2; ++part) b[g][k + part * 8] = value(4 + part);
      }
    for (int lane = 0; lane < kLanes; ++lane)
      for (int i = 0; i < 4; ++i) {
        const double *row = a[lane / 4 + i / 2 * 8], *column = b[lane % 4 * 2 + i % 2];
        double total = as<float>(w.in[lane][6 + i]);
        for (int k = 0; k < 16; ++k) total += row[k] * column[k];
        put(w.out[lane][i], float(total));
      }
  });
  std::copy_n(warp().out[self().lane], 4, made);
}

}  // namespace emulator
