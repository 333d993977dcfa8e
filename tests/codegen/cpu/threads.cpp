// Many callers of parallel loops at once: every task of every loop must run once, before the loop returns.

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include THREADS

namespace {

constexpr int kCallers = 24;  // more than jobs that can be open at a time
constexpr int kLoops = 400;

struct Loop {
  int done[ptqc_pool_1::kTasks] = {};
  int tasks = 0;
};

int Body(int task, ptqc_pool_1::Environment* environment, void* data) {
  Loop* const loop = static_cast<Loop*>(data);
  ++loop->done[task];
  if (task == 0) loop->tasks = environment->tasks;
  return 0;
}

int Failing(int task, ptqc_pool_1::Environment*, void*) { return task == 0 ? -1 : 0; }

void Check(bool holds, const char* what) {
  if (holds) return;
  std::printf("%s\n", what);
  std::exit(1);
}

void Call(int count) {
  const TVMFFIAny argument = {kTVMFFIInt, {0}, {count}};
  TVMFFIAny result;
  __tvm_ffi_set_threads(nullptr, &argument, 1, &result);
  for (int i = 0; i < kLoops; ++i) {
    Loop loop;
    Check(__TVMBackendParallelLaunch(Body, &loop, 0) == 0, "a loop failed");
    for (int task = 0; task < ptqc_pool_1::kTasks; ++task) Check(loop.done[task] == (task < loop.tasks), "a task did not run once");
  }
  Check(__TVMBackendParallelLaunch(Failing, nullptr, 0) != 0, "a failure was lost");
}

}  // namespace

int main(int arguments, char**) {
  ptqc_pool_1::pool.processors = 4;  // wherever this runs
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) callers.emplace_back(Call, i % 5);
  for (std::thread& caller : callers) caller.join();
  if (arguments > 1) return 0;  // a sanitizer of threads follows no fork
  const pid_t child = fork();
  if (child == 0) {
    Call(4);
    std::_Exit(0);
  }
  int status = -1;
  Check(waitpid(child, &status, 0) == child && status == 0, "the child failed");
}
