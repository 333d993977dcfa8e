// Stands in for libcuda.so.1: kernels run on the processor (block.h). It says so wherever it is asked for its name, and
// ptqc asks before it runs anything for a user (`ptqc_is_emulator`). A module's image is looked for in the folder
// PTQC_EMULATED_KERNELS: beside a file with the same bytes, NAME.fatbin, lies their translation, NAME.so.
#include <dirent.h>
#include <dlfcn.h>
#include <sys/stat.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "launch.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

enum Result { kSuccess = 0, kInvalidValue = 1, kNoBinary = 209, kNotFound = 500, kLaunchFailed = 719, kRefused = 801 };

constexpr unsigned kUsualShared = 48 << 10, kLargestSide = 65535;
thread_local std::string problem;
uint64_t left_out;

struct Module {
  void* handle;
};

using Kernel = const char* (*)(const emulator::Launch*);

struct Function {
  void* handle;
  std::string name;
  unsigned dynamic, parameters;
};

// The kernel for the chip that PTQC_EMULATOR_CHIP names, or where the PTX for it is no other, the usual one.
Kernel kernel_of(const Function& function) {
  const char* chip = getenv("PTQC_EMULATOR_CHIP");
  void* found = chip ? dlsym(function.handle, ("launch_" + function.name + "_" + chip).c_str()) : nullptr;
  return reinterpret_cast<Kernel>(found ? found : dlsym(function.handle, ("launch_" + function.name).c_str()));
}

// What was asked of a stream while it was captured.
using Graph = std::vector<std::function<int()>>;
thread_local Graph* captured = nullptr;
thread_local void* captured_stream = nullptr;

// CUlaunchConfig
struct Config {
  unsigned grid[3], block[3], dynamic;
  void *stream, *attributes;
  unsigned attribute_count;
};

// The first bytes of an image tell its size, so that no more is compared than there is.
bool has_bytes(const std::string& path, const char* image) {
  uint64_t size;
  memcpy(&size, image + 8, sizeof size);
  struct stat found;
  if (stat(path.c_str(), &found) || !S_ISREG(found.st_mode) || uint64_t(found.st_size) != size + 16) return false;
  FILE* file = fopen(path.c_str(), "rb");
  if (!file) return false;
  std::vector<char> bytes(size + 16);
  size_t read = fread(bytes.data(), 1, bytes.size(), file);
  fclose(file);
  return read == bytes.size() && memcmp(bytes.data(), image, read) == 0;
}

// The name of the image's file, less its suffix; empty where there is none.
std::string known_as(const char* folder, const char* image) {
  const std::string suffix = ".fatbin";
  std::string known;
  DIR* entries = memcmp(image, "\x50\xed\x55\xba", 4) ? nullptr : opendir(folder);
  while (dirent* entry = entries && known.empty() ? readdir(entries) : nullptr) {
    std::string path = std::string(folder) + "/" + entry->d_name;
    if (path.ends_with(suffix) && has_bytes(path, image)) known = path.substr(0, path.size() - suffix.size());
  }
  if (entries) closedir(entries);
  return known;
}

void* translation(const char* image) {
  const char* folder = getenv("PTQC_EMULATED_KERNELS");
  std::string known = known_as(folder ? folder : "", image);
  if (known.empty()) {
    problem = "the emulator has no translation of these kernels";
    return nullptr;
  }
  void* handle = dlopen((known + ".so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) problem = dlerror();
  return handle;
}

}  // namespace

API int ptqc_is_emulator() { return 1; }

// Bytes that blocks left out since the last call could have stored.
API uint64_t ptqc_left_out() { return std::exchange(left_out, 0); }

API int cuModuleLoadData(Module** made, const char* image) {
  void* handle = translation(image);
  if (!handle) return kNoBinary;
  *made = new Module{handle};
  return kSuccess;
}

API int cuModuleUnload(Module* module) {
  delete module;
  return kSuccess;
}

API int cuModuleGetFunction(Function** made, Module* module, const char* name) {
  void* found = dlsym(module->handle, ("launch_" + std::string(name)).c_str());
  void* count = dlsym(module->handle, ("parameters_" + std::string(name)).c_str());
  if (!found || !count) return kNotFound;
  unsigned parameters = *static_cast<unsigned*>(count);
  *made = new Function{module->handle, name, kUsualShared, parameters};
  return kSuccess;
}

API int cuFuncSetAttribute(Function* function, int, int bytes) {
  function->dynamic = bytes;
  return kSuccess;
}

static int run(const Config& given, Function* function, void** arguments) {
  const char *order = getenv("PTQC_EMULATOR_ORDER"), *share = getenv("PTQC_EMULATOR_SHARE");
  const char* digits = getenv("PTQC_EMULATOR_DIGITS");
  emulator::Launch launch{{given.grid[0], given.grid[1], given.grid[2]},
                          {given.block[0], given.block[1], given.block[2]},
                          given.dynamic,
                          order ? unsigned(atoi(order)) : 0,
                          arguments,
                          share ? atof(share) : 1,
                          &left_out,
                          digits ? atoi(digits) : 0};
  const char* found = kernel_of(*function)(&launch);
  problem = found ? found : "";
  return found ? kLaunchFailed : kSuccess;
}

API int cuLaunchKernelEx(const Config* given, Function* function, void** arguments, void**) {
  if (given->dynamic > function->dynamic || given->grid[1] > kLargestSide || given->grid[2] > kLargestSide)
    return kInvalidValue;
  if (!captured || given->stream != captured_stream) return run(*given, function, arguments);
  std::vector<uint64_t> values(function->parameters);
  for (size_t i = 0; i < values.size(); ++i) memcpy(&values[i], arguments[i], sizeof values[i]);
  captured->push_back([config = *given, function, values]() mutable {
    std::vector<void*> places;
    for (uint64_t& value : values) places.push_back(&value);
    return run(config, function, places.data());
  });
  return kSuccess;
}

// For the stand-in of the runtime, which captures streams.
API void ptqc_capture(void* stream) {
  captured = new Graph;
  captured_stream = stream;
}

API void* ptqc_captured() { return std::exchange(captured, nullptr); }

API bool ptqc_captures(void* stream) { return captured && stream == captured_stream; }

API void ptqc_record_copy(void* to, const void* from, size_t bytes) {
  captured->push_back([=] { return memmove(to, from, bytes), kSuccess; });
}

API int ptqc_replay(void* graph) {
  for (auto& step : *static_cast<Graph*>(graph))
    if (int code = step()) return code;
  return kSuccess;
}

API void ptqc_forget(void* graph) { delete static_cast<Graph*>(graph); }

API int cuDeviceGetName(char* name, int length, int) {
  snprintf(name, length, "no GPU: the emulator of ptqc");
  return kSuccess;
}

API int cuGetErrorName(int code, const char** text) {
  static thread_local std::string told;
  told = "CUDA error " + std::to_string(code) + " of the emulator of ptqc" + (problem.empty() ? "" : ": " + problem);
  *text = told.c_str();
  return kSuccess;
}

API int cuGetErrorString(int code, const char** text) { return cuGetErrorName(code, text); }

API int cuTensorMapEncodeTiled() { return kRefused; }
