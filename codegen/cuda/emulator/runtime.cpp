// Stands in for libcudart.so.13: the memory of the device is memory of this process, with an end that must not be passed.
// PTQC_EMULATED_MEMORY: how many bytes of it there are.
#include <sys/mman.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#define API extern "C" __attribute__((visibility("default")))

// Of the stand-in for the driver.
extern "C" {
void ptqc_capture(void* stream);
void* ptqc_captured();
bool ptqc_captures(void* stream);
void ptqc_record_copy(void* to, const void* from, size_t bytes);
int ptqc_replay(void* graph);
void ptqc_forget(void* graph);
}

namespace {

enum Result { kSuccess = 0, kOutOfMemory = 2, kInvalidDevice = 101, kRefused = 801, kWhileCaptured = 900 };

constexpr size_t kPage = 4096, kAligned = 256;
constexpr int kPoison = 0xA5;
std::mutex lock;
std::map<void*, std::pair<void*, size_t>> taken;  // by address: the pages that it lies in

size_t in_use = 0;

size_t rounded(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

// What cudaDeviceGetAttribute is asked for, as an A100 answers.
int attribute(int which) {
  switch (which) {
    case 1: return 1024;     // threads of a block
    case 8: return 49152;    // bytes of shared memory of a block
    case 10: return 32;      // threads of a warp
    case 16: return 2;       // multiprocessors
    case 75: return 8;       // compute capability
    case 76: return 0;
    case 97: return 166912;  // bytes of shared memory that a kernel may ask for
    default: return 1024;
  }
}

}  // namespace

// The last page may not be touched, so that what passes the end of an allocation by a page stops.
API int cudaMalloc(void** made, size_t bytes) {
  size_t used = rounded(bytes, kAligned), whole = rounded(used, kPage) + kPage;
  const char* limit = getenv("PTQC_EMULATED_MEMORY");
  std::lock_guard<std::mutex> held(lock);
  if (limit && in_use + whole > size_t(atoll(limit))) return kOutOfMemory;
  char* pages = static_cast<char*>(mmap(nullptr, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (pages == MAP_FAILED) return kOutOfMemory;
  mprotect(pages + whole - kPage, kPage, PROT_NONE);
  memset(pages, kPoison, whole - kPage);
  *made = pages + whole - kPage - used;
  taken[*made] = {pages, whole};
  in_use += whole;
  return kSuccess;
}

API int cudaFree(void* given) {
  std::lock_guard<std::mutex> held(lock);
  auto found = taken.find(given);
  if (found == taken.end()) return given ? kInvalidDevice : kSuccess;
  munmap(found->second.first, found->second.second);
  in_use -= found->second.second;
  taken.erase(found);
  return kSuccess;
}

API int cudaMallocHost(void** made, size_t bytes) { return cudaMalloc(made, bytes); }
API int cudaFreeHost(void* given) { return cudaFree(given); }

API int cudaMemcpyAsync(void* to, const void* from, size_t bytes, int, void* stream) {
  if (ptqc_captures(stream)) return ptqc_record_copy(to, from, bytes), kSuccess;
  memmove(to, from, bytes);
  return kSuccess;
}

API int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, void*) {
  memmove(to, from, bytes);
  return kSuccess;
}

API int cudaMemGetInfo(size_t* free, size_t* total) {
  std::lock_guard<std::mutex> held(lock);
  *total = size_t(8) << 30;
  *free = *total - in_use;
  return kSuccess;
}

API int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}

API int cudaSetDevice(int device) { return device ? kInvalidDevice : kSuccess; }

API int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}

API int cudaDeviceGetAttribute(int* value, int which, int) {
  *value = attribute(which);
  return kSuccess;
}

API int cudaGetDeviceProperties(void* properties, int) {
  strcpy(static_cast<char*>(properties), "no GPU: the emulator of ptqc");
  return kSuccess;
}

API int cudaStreamCreate(void** stream) {
  *stream = new char;
  return kSuccess;
}

API int cudaStreamCreateWithFlags(void** stream, unsigned) { return cudaStreamCreate(stream); }

API int cudaStreamDestroy(void* stream) {
  delete static_cast<char*>(stream);
  return kSuccess;
}

API int cudaStreamSynchronize(void* stream) { return ptqc_captures(stream) ? kWhileCaptured : kSuccess; }

API int cudaStreamBeginCapture(void* stream, int) {
  ptqc_capture(stream);
  return kSuccess;
}

API int cudaStreamEndCapture(void* stream, void** graph) {
  if (!ptqc_captures(stream)) return kRefused;
  *graph = ptqc_captured();
  return kSuccess;
}

// A graph is its own executable, and goes with it.
API int cudaGraphInstantiate(void** made, void* graph, unsigned long long) {
  *made = graph;
  return kSuccess;
}

API int cudaGraphLaunch(void* graph, void*) { return ptqc_replay(graph); }

API int cudaGraphExecDestroy(void* graph) {
  ptqc_forget(graph);
  return kSuccess;
}

// An event is the moment at which it was recorded. What lies between two tells nothing of a GPU.
using Moment = std::chrono::steady_clock::time_point;

API int cudaEventCreate(Moment** made) {
  *made = new Moment();
  return kSuccess;
}

API int cudaEventRecord(Moment* event, void*) {
  *event = std::chrono::steady_clock::now();
  return kSuccess;
}

API int cudaEventElapsedTime(float* milliseconds, const Moment* begin, const Moment* end) {
  *milliseconds = std::chrono::duration<float, std::milli>(*end - *begin).count();
  return kSuccess;
}

API int cudaEventDestroy(Moment* event) {
  delete event;
  return kSuccess;
}

// Everything is done as soon as it is asked for.
#define NOTHING(name) \
  API int name() { return kSuccess; }
NOTHING(cudaEventSynchronize)
NOTHING(cudaGetLastError)
NOTHING(cudaGraphDestroy)
NOTHING(cudaPeekAtLastError)
NOTHING(cudaStreamWaitEvent)

API const char* cudaGetErrorString(int code) {
  return code == kOutOfMemory ? "out of memory" : "an error of the emulator of ptqc";
}

API const char* cudaGetErrorName(int code) { return cudaGetErrorString(code); }
