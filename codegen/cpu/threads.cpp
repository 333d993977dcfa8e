// Threads of native libraries: one set for the whole process, whatever the number of libraries and of calling threads.
//
// A parallel loop is a job, cut into more tasks than threads. The caller works on it, and idle workers join for as long
// as it is open. Nobody waits for a worker that has not begun. Every participant begins with a part of its own, the same
// one in every loop, so that it finds in its cache what it made in the loop before; then it takes over what is left of
// the others' parts.
//
// No thread stays bound to a processor. Workers join only while the process has processors to spare, sleep soon after
// there is nothing to do, never end, and are started anew in a child after a fork.

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#ifndef PTQC_STATIC_LIBRARY
#include <tvm/ffi/c_api.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

// What the name below stands for changes only with its version: libraries of several versions may share a process.
namespace ptqc_pool_1 {

// As TVM's generated code declares them.
struct Environment {
  void* sync_handle;
  int32_t tasks;
};
using Lambda = int (*)(int task, Environment* environment, void* data);

constexpr int kJobs = 16;             // open at a time; further callers work alone
constexpr int kParts = 64;            // of a job; with more threads some share one
constexpr int kTasksPerThread = 8;    // fewer wait longer for the last one, more cost more calls
constexpr int kTasks = 128;           // of a job at most: as many as generated loops have slices
constexpr int64_t kIdleTime = 200000; // ns: longer than the gaps between the loops of one run
constexpr int kSpins = 64;            // between two looks at the clock
constexpr int kWaitingSpins = 1000;   // before a caller looks at the clock while it waits for a worker
constexpr int64_t kPatience = 2000000; // ns before it offers its processor, which others may take for longer
constexpr int64_t kLate = 250000;     // ns: longer than a worker takes for a task, unless its processor does something else
constexpr int64_t kShortest = 8000000, kLongest = 128000000;  // ns that callers work alone after that
constexpr uint32_t kTaken = 1u << 31, kOpen = 1u << 30, kHelpers = kOpen - 1;

// One on each cache line: they belong to different threads.
struct alignas(64) Counter {
  std::atomic<int> value{0};
};

struct alignas(64) Job {
  std::atomic<uint32_t> state{0};  // taken by a caller, open to workers, number of workers inside
  std::atomic<bool> failed{false};
  Lambda lambda = nullptr;
  void* data = nullptr;
  int tasks = 0;
  std::atomic<int> parts{0}, processor{0};  // workers read these before they are inside
  Counter next[kParts];  // the first task of each part that nobody took
};

struct Pool {
  Job jobs[kJobs];
  std::atomic<uint32_t> news{0};  // changes whenever a job opens
  std::atomic<int> sleeping{0}, active{0}, started{0};
  std::atomic<int64_t> alone_until{0}, alone_for{0};  // ns
  std::atomic<int> processors{0};  // that the process may use, once somebody asked
  std::atomic<bool> watches_forks{false};
};

// Such a variable is one and the same for all libraries of the process.
__attribute__((visibility("default"))) inline Pool pool;

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

inline int64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

inline int Processors() {
  cpu_set_t mine;
  if (pool.processors == 0) pool.processors = sched_getaffinity(0, sizeof(mine), &mine) == 0 ? CPU_COUNT(&mine) : 1;
  return pool.processors;
}

inline int FirstTask(const Job& job, int part) { return static_cast<int>(int64_t{job.tasks} * part / job.parts); }

// Takes tasks, those of the own part first, until none is left.
inline void Work(Job& job, int participant) {
  Environment environment{nullptr, job.tasks};
  for (int i = 0; i < job.parts; ++i) {
    const int part = (participant + i) % job.parts, end = FirstTask(job, part + 1);
    for (int task; (task = job.next[part].value.fetch_add(1, std::memory_order_relaxed)) < end;) {
      if (job.lambda(task, &environment, job.data) != 0) job.failed = true;
    }
  }
}

// Counts a worker in unless the job is closed or has all that it wants.
inline bool Join(Job& job) {
  uint32_t state = job.state;
  while ((state & kOpen) && static_cast<int>(state & kHelpers) + 1 < job.parts) {
    if (job.state.compare_exchange_weak(state, state + 1)) return true;
  }
  return false;
}

// Lets the system move this worker to another processor; it may come back.
inline void LeaveProcessor(int processor) {
  cpu_set_t mine, others;
  if (sched_getaffinity(0, sizeof(mine), &mine) != 0) return;
  others = mine;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) > 0 && sched_setaffinity(0, sizeof(others), &others) == 0) sched_setaffinity(0, sizeof(mine), &mine);
}

// Works on an open job, if there is one, but not on the processor of its caller, who would have to wait meanwhile: a
// system that is busy wakes workers there.
inline void Help(int participant, int processors) {
  for (Job& job : pool.jobs) {
    if (!(job.state & kOpen) || pool.active >= processors) continue;
    if (job.processor == sched_getcpu()) LeaveProcessor(job.processor);
    if (!Join(job)) continue;
    ++pool.active;
    Work(job, participant);
    --pool.active;
    --job.state;
  }
}

inline void Sleep(uint32_t seen) {
  ++pool.sleeping;
  syscall(SYS_futex, &pool.news, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  --pool.sleeping;
}

// Waits a while for another job to open, then sleeps until one does.
inline uint32_t AwaitNews(uint32_t seen) {
  for (const int64_t end = Now() + kIdleTime; Now() < end;) {
    for (int i = 0; i < kSpins; ++i, Pause()) {
      if (pool.news != seen) return pool.news;
    }
  }
  Sleep(seen);
  return pool.news;
}

inline void* Worker(void* argument) {
  const int participant = static_cast<int>(reinterpret_cast<intptr_t>(argument)), processors = Processors();
  for (uint32_t seen = pool.news;; seen = AwaitNews(seen)) Help(participant, processors);
  return nullptr;
}

// In the child of a fork only the calling thread exists.
inline void Forget() {
  for (Job& job : pool.jobs) job.state = 0;
  pool.sleeping = pool.active = pool.started = 0;
}

inline bool StartOne(int participant) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  sigset_t all, before;  // signals are for the program's own threads
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const int failure = pthread_create(&thread, &attributes, Worker, reinterpret_cast<void*>(intptr_t{participant}));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  pthread_attr_destroy(&attributes);
  return failure == 0;
}

// Starts workers until there are so many, as far as the system allows.
inline void Start(int workers) {
  if (!pool.watches_forks.exchange(true)) pthread_atfork(nullptr, nullptr, Forget);
  for (int started = pool.started; started < workers; started = pool.started) {
    if (!pool.started.compare_exchange_strong(started, started + 1)) continue;
    if (!StartOne(started + 1)) return;
  }
}

inline Job* Take() {
  for (Job& job : pool.jobs) {
    uint32_t free = 0;
    if (job.state == 0 && job.state.compare_exchange_strong(free, kTaken)) return &job;
  }
  return nullptr;
}

inline void Open(Job& job, Lambda lambda, void* data, int threads) {
  job.lambda = lambda;
  job.data = data;
  job.parts = std::min(threads, kParts);
  job.tasks = std::min(threads * kTasksPerThread, kTasks);
  job.processor = sched_getcpu();
  job.failed = false;
  for (int part = 0; part < job.parts; ++part) job.next[part].value = FirstTask(job, part);
  job.state = kTaken | kOpen;
  ++pool.news;
  if (pool.sleeping > 0) syscall(SYS_futex, &pool.news, FUTEX_WAKE_PRIVATE, job.parts - 1, nullptr, nullptr, 0);
}

// Waits for workers that are in the middle of a task. One whose processor does something else in the middle of a task
// costs more than workers gain: then callers work alone for a while, the longer the more often it happens.
inline void Close(Job& job, int64_t opened) {
  job.state &= ~kOpen;
  for (int spins = 0; (job.state & kHelpers) && spins < kWaitingSpins; ++spins) Pause();
  if (!(job.state & kHelpers)) return;
  const int64_t began = Now();
  while (job.state & kHelpers) {
    for (int i = 0; i < kSpins; ++i) Pause();
    if (Now() - began > kPatience) sched_yield();
  }
  const int64_t ended = Now();
  if (ended - began < std::max(kLate, (began - opened) / 4)) return;
  const bool again = ended - pool.alone_until < pool.alone_for;
  pool.alone_for = again ? std::min(2 * pool.alone_for, kLongest) : kShortest;
  pool.alone_until = ended + pool.alone_for;
}

inline int Alone(Lambda lambda, void* data) {
  Environment environment{nullptr, 1};
  return lambda(0, &environment, data);
}

inline int Launch(Lambda lambda, void* data, int threads) {
  const int64_t opened = threads > 1 ? Now() : 0;
  Job* const job = threads > 1 && opened >= pool.alone_until ? Take() : nullptr;
  if (job == nullptr) return Alone(lambda, data);
  Start(threads - 1);
  ++pool.active;
  Open(*job, lambda, data, threads);
  Work(*job, 0);
  Close(*job, opened);
  --pool.active;
  const bool failed = job->failed;
  job->state = 0;
  return failed ? -1 : 0;
}

}  // namespace ptqc_pool_1

namespace {

// Of the calling thread, itself included; 0: as many as there are processors.
#ifdef PTQC_STATIC_LIBRARY
// Systems without thread-local variables link such libraries, too.
pthread_key_t key;
pthread_once_t once = PTHREAD_ONCE_INIT;
int failure = 0;

void MakeKey() { failure = pthread_key_create(&key, nullptr); }

int SetThreads(int count) {
  const int refusal = pthread_once(&once, MakeKey);
  if (refusal || failure) return -1;
  return pthread_setspecific(key, reinterpret_cast<void*>(intptr_t{count}));
}

int GetThreads() { return static_cast<int>(reinterpret_cast<intptr_t>(pthread_getspecific(key))); }
#else
thread_local int threads = 0;

int SetThreads(int count) {
  threads = count;
  return 0;
}

int GetThreads() { return threads; }
#endif

int Launch(ptqc_pool_1::Lambda lambda, void* data, int) {
  const int processors = ptqc_pool_1::Processors(), threads = GetThreads();
  return ptqc_pool_1::Launch(lambda, data, threads > 0 ? std::min(threads, processors) : processors);
}

}  // namespace

extern "C" {

// Generated code calls what this points to. TVM's runtime would let it point to its own pool, but finds no hidden name.
__attribute__((visibility("hidden"))) int (*__TVMBackendParallelLaunch)(ptqc_pool_1::Lambda, void*, int) = Launch;

#ifdef PTQC_STATIC_LIBRARY
int ptqc_use_threads(int count) { return SetThreads(count); }
#else
// set_threads(n): how many threads the calling thread's loops use from now on.
__attribute__((visibility("default"))) int __tvm_ffi_set_threads(void*, const TVMFFIAny* arguments, int32_t count, TVMFFIAny* result) {
  if (count == 1) SetThreads(static_cast<int>(arguments[0].v_int64));
  result->type_index = kTVMFFINone;
  result->v_int64 = 0;
  return 0;
}
#endif
}
