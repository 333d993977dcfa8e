// The tile instructions of AMX as functions, for processors that have none; stricter than these.
//
// What the processor would refuse, or what would leave registers in a state that nobody meant, is a fault: it is counted
// and told. `soft_allow` names memory from which loads may read; without any they may read everywhere.

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

namespace {

constexpr int kRegisters = 8, kRows = 16, kRowBytes = 64, kRanges = 256;

struct Register {
  int rows = 0, bytes = 0;
  bool is_set = false;
  uint8_t data[kRows][kRowBytes] = {};
};

struct State {
  bool is_configured = false;
  Register registers[kRegisters];
};

thread_local State state;
std::atomic<int64_t> faults{0}, products{0};
std::atomic<int> planted{0};  // of which load its first byte is changed; 0: none
std::mutex mutex;
std::string first;
uintptr_t begins[kRanges], ends[kRanges];
std::atomic<int> ranges{0};

void Fault(const char* what) {
  if (faults++ == 0) {
    const std::lock_guard<std::mutex> lock(mutex);
    first = what;
  }
}

bool IsReadable(const uint8_t* row, int bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(row);
  for (int i = 0; i < ranges; ++i) {
    if (begins[i] <= begin && begin + bytes <= ends[i]) return true;
  }
  return ranges == 0;
}

// The register, if it has a shape.
Register* Configured(uint8_t number) {
  if (!state.is_configured) return Fault("no configuration is loaded"), nullptr;
  if (number >= kRegisters) return Fault("there is no such register"), nullptr;
  Register* const result = &state.registers[number];
  if (result->rows == 0 || result->bytes == 0) return Fault("the register has no shape"), nullptr;
  return result;
}

// Adds to each sum what `add` makes of four bytes of inputs and of weights, one after the other.
template <typename Sum, typename Add>
void Multiply(uint8_t sums, uint8_t inputs, uint8_t weights, Add add) {
  Register *const c = Configured(sums), *const a = Configured(inputs), *const b = Configured(weights);
  if (c == nullptr || a == nullptr || b == nullptr) return;
  if (c == a || c == b || a == b) return Fault("a register is two operands");
  if (!c->is_set || !a->is_set || !b->is_set) return Fault("an operand is not set");
  if (a->bytes % 4 || c->bytes % 4 || c->rows != a->rows || c->bytes != b->bytes || a->bytes / 4 != b->rows) {
    return Fault("the shapes of a product do not agree");
  }
  for (int row = 0; row < c->rows; ++row) {
    for (int column = 0; column < c->bytes / 4; ++column) {
      Sum sum;
      std::memcpy(&sum, c->data[row] + 4 * column, sizeof sum);
      for (int i = 0; i < b->rows; ++i) sum = add(sum, a->data[row] + 4 * i, b->data[i] + 4 * column);
      std::memcpy(c->data[row] + 4 * column, &sum, sizeof sum);
    }
  }
  ++products;
}

float Bfloat16(const uint8_t* bytes) {
  const uint32_t bits = static_cast<uint32_t>(bytes[0] | bytes[1] << 8) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

}  // namespace

extern "C" {

void soft_configure(const uint8_t* settings) {
  if (state.is_configured) Fault("a configuration is loaded already");
  state = State();
  if (settings[0] != 1 || settings[1] != 0) return Fault("not palette 1 from its first row");
  for (int i = 2; i < 16; ++i) {
    if (settings[i] != 0) return Fault("reserved bytes are set");
  }
  for (int i = 0; i < 2 * kRegisters; ++i) {
    uint16_t bytes;
    std::memcpy(&bytes, settings + 16 + 2 * i, sizeof bytes);
    const int rows = settings[48 + i];
    if (i >= kRegisters && (bytes || rows)) return Fault("a register that is not there has a shape");
    if (i >= kRegisters) continue;
    if (rows > kRows || bytes > kRowBytes || (rows == 0) != (bytes == 0)) return Fault("a shape is not allowed");
    state.registers[i].rows = rows;
    state.registers[i].bytes = bytes;
  }
  state.is_configured = true;
}

void soft_release() {
  if (!state.is_configured) Fault("no configuration to release");
  state = State();
}

void soft_load(uint8_t number, const uint8_t* memory, int64_t pitch) {
  Register* const target = Configured(number);
  if (target == nullptr) return;
  for (int row = 0; row < target->rows; ++row) {
    if (!IsReadable(memory + row * pitch, target->bytes)) return Fault("a load reads beyond what may be read");
    std::memcpy(target->data[row], memory + row * pitch, target->bytes);
  }
  if (planted > 0 && --planted == 0) target->data[target->rows - 1][0] ^= 0x80;
  target->is_set = true;
}

void soft_store(uint8_t number, uint8_t* memory, int64_t pitch) {
  const Register* const source = Configured(number);
  if (source == nullptr) return;
  if (!source->is_set) return Fault("a register is stored before it is set");
  for (int row = 0; row < source->rows; ++row) std::memcpy(memory + row * pitch, source->data[row], source->bytes);
}

void soft_multiply(uint8_t sums, uint8_t inputs, uint8_t weights) {
  Multiply<uint32_t>(sums, inputs, weights, [](uint32_t sum, const uint8_t* x, const uint8_t* w) {
    for (int i = 0; i < 4; ++i) sum += x[i] * static_cast<int8_t>(w[i]);
    return sum;
  });
}

void soft_multiply_bfloat16(uint8_t sums, uint8_t inputs, uint8_t weights) {
  Multiply<float>(sums, inputs, weights, [](float sum, const uint8_t* x, const uint8_t* w) {
    for (int i = 0; i < 4; i += 2) sum += Bfloat16(x + i) * Bfloat16(w + i);
    return sum;
  });
}

// For tests.

int64_t soft_faults() { return faults; }
int64_t soft_products() { return products; }

void soft_first_fault(char* text, int size) {
  const std::lock_guard<std::mutex> lock(mutex);
  std::snprintf(text, size, "%s", first.c_str());
}

// Forgets what was counted, and what the calling thread has configured. load: which of the next loads gives a wrong tile;
// 0: none.
void soft_reset(int load) {
  faults = products = ranges = 0;
  first.clear();
  planted = load;
  state = State();
}

void soft_allow_everything() { ranges = 0; }

void soft_allow(uintptr_t begin, int64_t size) {
  if (ranges == kRanges) return Fault("there are more ranges than a test should need");
  begins[ranges] = begin;
  ends[ranges] = begin + size;
  ++ranges;
}
}
