// Runs a native library that ptqc compiled, without Python.
//
//   ptqc_example cpu/avx2.so 1x3x224x224 [shape of the second input ...]
//   ptqc_example cuda/cuda.so 1x3x224x224                                      on the first GPU
//
// Every input is float32 and holds the values -3 ... 3 over and over. Printed are each output's shape and first values.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr int64_t kPrinted = 8;
constexpr int kNaiveAllocator = 1, kPooledAllocator = 2;
// What runs kernels on a GPU, in the order in which it is loaded.
constexpr const char* kGpuRuntimes[] = {"libcudart.so.13", "libtvm_runtime_cuda.so"};

// The kernels read whole vectors: memory that is not aligned to 64 bytes makes them fault.
struct AlignedMemory {
  static constexpr std::align_val_t kAlignment{64};
  void AllocData(DLTensor* tensor) { tensor->data = ::operator new(ffi::GetDataSize(*tensor), kAlignment); }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, kAlignment); }
};

// "1x3x224x224" -> {1, 3, 224, 224}
std::vector<int64_t> ParseShape(const std::string& text) {
  std::vector<int64_t> shape;
  std::istringstream stream(text);
  for (std::string size; std::getline(stream, size, 'x');) {
    shape.push_back(std::stoll(size));
    if (shape.back() <= 0) throw std::invalid_argument("a size in the shape " + text + " is not positive");
  }
  return shape;
}

ffi::Tensor MakeInput(const std::string& shape_text) {
  const std::vector<int64_t> shape = ParseShape(shape_text);
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::ShapeView(shape.data(), shape.size()),
                                                DLDataType{kDLFloat, 32, 1}, DLDevice{kDLCPU, 0});
  float* values = static_cast<float*>(tensor.data_ptr());
  for (int64_t i = 0; i < tensor.numel(); ++i) values[i] = static_cast<float>(i % 7 - 3);
  return tensor;
}

// The file of weights, which all libraries of an artifact share.
ffi::Tensor ReadWeights(const std::filesystem::path& path) {
  const int64_t size = static_cast<int64_t>(std::filesystem::file_size(path));
  ffi::Tensor tensor = ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::ShapeView(&size, 1), DLDataType{kDLUInt, 8, 1},
                                                DLDevice{kDLCPU, 0});
  std::ifstream file(path, std::ios::binary);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), size)) throw std::runtime_error("cannot read " + path.string());
  return tensor;
}

double ValueAt(const ffi::Tensor& tensor, int64_t i) {
  const DLDataType type = tensor.dtype();
  if (type.code == kDLFloat && type.bits == 32) return static_cast<const float*>(tensor.data_ptr())[i];
  if (type.code == kDLInt && type.bits == 64) return static_cast<double>(static_cast<const int64_t*>(tensor.data_ptr())[i]);
  throw std::runtime_error("this example prints float32 and int64 outputs only");
}

void Print(int64_t index, const ffi::Tensor& tensor) {
  std::printf("output %lld [", static_cast<long long>(index));
  for (int32_t d = 0; d < tensor.ndim(); ++d) std::printf(d ? ", %lld" : "%lld", static_cast<long long>(tensor.size(d)));
  std::printf("]:");
  for (int64_t i = 0; i < std::min(kPrinted, tensor.numel()); ++i) std::printf(" %.9g", ValueAt(tensor, i));
  std::printf("\n");
}

ffi::Any Call(const ffi::Function& function, const std::vector<ffi::Any>& arguments) {
  const std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  function.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  return result;
}

ffi::Function Find(const ffi::Module& module, const char* name) {
  ffi::Optional<ffi::Function> found = module->GetFunction(name);
  if (!found.has_value()) throw std::runtime_error(std::string("the library has no function ") + name);
  return found.value();
}

ffi::Function Global(const char* name) { return ffi::Function::GetGlobalRequired(name); }

// Where a library works: memory of the processor, which tensors lie in already, or of the first GPU.
class Place {
 public:
  explicit Place(bool is_gpu) : is_gpu_(is_gpu) {
    if (!is_gpu) return;
    for (const char* name : kGpuRuntimes)
      if (!dlopen(name, RTLD_NOW | RTLD_GLOBAL)) throw std::runtime_error(dlerror());
  }

  void Initialize(const ffi::Module& machine) const {
    const ffi::Function initialize = Find(machine, "vm_initialization");
    const int cpu = static_cast<int>(kDLCPU), gpu = static_cast<int>(kDLCUDA);
    if (is_gpu_)
      initialize(gpu, 0, kPooledAllocator, cpu, 0, kNaiveAllocator);
    else
      initialize(cpu, 0, kNaiveAllocator);
  }

  ffi::Tensor Put(const ffi::Tensor& host) const { return is_gpu_ ? Copied(host, DLDevice{kDLCUDA, 0}) : host; }
  ffi::Tensor Pull(const ffi::Tensor& there) const { return is_gpu_ ? Copied(there, DLDevice{kDLCPU, 0}) : there; }

 private:
  static ffi::Tensor Copied(const ffi::Tensor& from, DLDevice device) {
    const ffi::Any made =
        Global("runtime.TVMTensorAllocWithScope")(ffi::Shape(from.shape()), from.dtype(), device, nullptr);
    const ffi::Tensor to = made.cast<ffi::Tensor>();
    Global("runtime.TVMTensorCopyFromTo")(from, to);
    Global("runtime.Device_StreamSync")(DLDevice{kDLCUDA, 0}, 0);
    return to;
  }

  bool is_gpu_;
};

void Run(const std::string& path, const std::vector<std::string>& shapes) {
  const Place place(std::filesystem::path(path).filename() == "cuda.so");
  // An absolute path: a bare file name would be looked for in the system's library folders.
  const ffi::Module library = ffi::Module::LoadFromFile(std::filesystem::absolute(path).string());
  // One virtual machine per thread; `constants` may be shared between all of them.
  const ffi::Module machine = Find(library, "vm_load_executable")().cast<ffi::Module>();
  place.Initialize(machine);
  const ffi::Tensor weights = ReadWeights(std::filesystem::absolute(path).replace_filename("weights.bin"));
  const ffi::Any constants = Find(machine, "prepare")(place.Put(weights));

  std::vector<ffi::Any> arguments;
  for (const std::string& shape : shapes) arguments.push_back(place.Put(MakeInput(shape)));
  // What a run works in: may be used again for batches of this size and smaller, by one thread at a time.
  const ffi::Any workspace = Call(Find(machine, "workspace"), arguments);
  arguments.push_back(constants);
  arguments.push_back(workspace);
  const ffi::Any result = Call(Find(machine, "main"), arguments);

  const auto outputs = result.cast<ffi::Array<ffi::Tensor>>();
  for (int64_t i = 0; i < static_cast<int64_t>(outputs.size()); ++i) Print(i, place.Pull(outputs[i]));
}

}  // namespace

int main(int count, char** values) {
  if (count < 3) {
    std::fprintf(stderr, "usage: %s cpu/avx2.so SHAPE [SHAPE ...], for example 1x3x224x224\n", values[0]);
    return 2;
  }
  try {
    Run(values[1], std::vector<std::string>(values + 2, values + count));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
