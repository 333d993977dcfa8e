// Runs a native library and its kernels for a process of another kind of machine, through an emulator.
//
//   runner LIBRARY WEIGHTS
//
// It unpacks the constants and writes how many there are. Then it reads requests from its input, each answered on its
// output: one byte, 0 and what came out, or 1 and a message. All numbers are little endian, as on both machines.
//
//   'R' count tensor ...               run the whole: count tensor ...
//   'K' name count argument ...        call a kernel: the bytes of the last tensor among its arguments
//
// An argument is 't' tensor, 'c' number of a constant, or 'i' integer. A tensor is its type code, bits, axes, sizes and
// bytes; a count and a number are int32, a size and an integer int64.

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

namespace {

constexpr int kNaiveAllocator = 1;

struct AlignedMemory {
  static constexpr std::align_val_t kAlignment{64};
  void AllocData(DLTensor* tensor) { tensor->data = ::operator new(ffi::GetDataSize(*tensor), kAlignment); }
  void FreeData(DLTensor* tensor) { ::operator delete(tensor->data, kAlignment); }
};

ffi::Tensor Make(DLDataType type, const std::vector<int64_t>& shape) {
  return ffi::Tensor::FromNDAlloc(AlignedMemory(), ffi::ShapeView(shape.data(), shape.size()), type,
                                  DLDevice{kDLCPU, 0});
}

size_t Bytes(const ffi::Tensor& tensor) { return tensor.numel() * ((tensor.dtype().bits + 7) / 8); }

void Read(void* data, size_t size) {
  if (size && std::fread(data, 1, size, stdin) != size) throw std::runtime_error("a request ends too early");
}

void Write(const void* data, size_t size) {
  if (size) std::fwrite(data, 1, size, stdout);
}

template <typename T>
T ReadNumber() {
  T value;
  Read(&value, sizeof value);
  return value;
}

template <typename T>
void WriteNumber(T value) {
  Write(&value, sizeof value);
}

std::string ReadText() {
  std::string text(ReadNumber<int32_t>(), '\0');
  Read(text.data(), text.size());
  return text;
}

ffi::Tensor ReadTensor() {
  const auto code = ReadNumber<uint8_t>(), bits = ReadNumber<uint8_t>();
  std::vector<int64_t> shape(ReadNumber<int32_t>());
  for (int64_t& size : shape) size = ReadNumber<int64_t>();
  ffi::Tensor tensor = Make(DLDataType{code, bits, 1}, shape);
  Read(tensor.data_ptr(), Bytes(tensor));
  return tensor;
}

void WriteTensor(const ffi::Tensor& tensor) {
  WriteNumber<uint8_t>(tensor.dtype().code);
  WriteNumber<uint8_t>(tensor.dtype().bits);
  WriteNumber<int32_t>(tensor.ndim());
  for (int32_t axis = 0; axis < tensor.ndim(); ++axis) WriteNumber<int64_t>(tensor.size(axis));
  Write(tensor.data_ptr(), Bytes(tensor));
}

ffi::Any Call(const ffi::Function& function, const std::vector<ffi::Any>& arguments) {
  const std::vector<ffi::AnyView> views(arguments.begin(), arguments.end());
  ffi::Any result;
  function.CallPacked(views.data(), static_cast<int32_t>(views.size()), &result);
  return result;
}

ffi::Function Find(const ffi::Module& module, const std::string& name) {
  ffi::Optional<ffi::Function> found = module->GetFunction(name, /*query_imports=*/true);
  if (!found.has_value()) throw std::runtime_error("the library has no function " + name);
  return found.value();
}

ffi::Tensor ReadFile(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const int64_t size = file.tellg();
  ffi::Tensor tensor = Make(DLDataType{kDLUInt, 8, 1}, {size});
  file.seekg(0);
  if (!file.read(static_cast<char*>(tensor.data_ptr()), size)) throw std::runtime_error("cannot read the weights");
  return tensor;
}

class Library {
 public:
  Library(const char* library, const char* weights)
      : module_(ffi::Module::LoadFromFile(library)),
        machine_(Find(module_, "vm_load_executable")().cast<ffi::Module>()) {
    Find(module_, "set_threads")(1);
    Find(machine_, "vm_initialization")(static_cast<int>(kDLCPU), 0, kNaiveAllocator);
    constants_ = Find(machine_, "prepare")(ReadFile(weights));
  }

  ffi::Array<ffi::Tensor> constants() const { return constants_.cast<ffi::Array<ffi::Tensor>>(); }

  ffi::Array<ffi::Tensor> Run() const {
    std::vector<ffi::Any> arguments;
    for (auto count = ReadNumber<int32_t>(); count; --count) arguments.push_back(ReadTensor());
    const ffi::Any workspace = Call(Find(machine_, "workspace"), arguments);
    arguments.push_back(constants_);
    arguments.push_back(workspace);
    return Call(Find(machine_, "main"), arguments).cast<ffi::Array<ffi::Tensor>>();
  }

  ffi::Tensor CallKernel() const {
    const std::string name = ReadText();
    std::vector<ffi::Any> arguments;
    ffi::Optional<ffi::Tensor> last;
    for (auto count = ReadNumber<int32_t>(); count; --count) {
      switch (ReadNumber<char>()) {
        case 't': arguments.push_back(*(last = ReadTensor())); break;
        case 'c': arguments.push_back(constants()[ReadNumber<int32_t>()]); break;
        default: arguments.push_back(ReadNumber<int64_t>());
      }
    }
    Call(Find(module_, name), arguments);
    return last.value();
  }

 private:
  ffi::Module module_, machine_;
  ffi::Any constants_;
};

void Answer(const Library& library, int request) {
  if (request == 'K') {
    const ffi::Tensor output = library.CallKernel();
    WriteNumber<char>(0);
    Write(output.data_ptr(), Bytes(output));
    return;
  }
  const ffi::Array<ffi::Tensor> outputs = library.Run();
  WriteNumber<char>(0);
  WriteNumber<int32_t>(static_cast<int32_t>(outputs.size()));
  for (const ffi::Tensor& output : outputs) WriteTensor(output);
}

void Serve(const char* path, const char* weights) {
  const Library library(path, weights);
  WriteNumber<char>(0);
  WriteNumber<int32_t>(static_cast<int32_t>(library.constants().size()));
  std::fflush(stdout);
  for (int request; (request = std::getchar()) != EOF;) {
    Answer(library, request);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int count, char** values) {
  if (count != 3) return 2;
  try {
    Serve(values[1], values[2]);
  } catch (const std::exception& error) {
    const std::string message = error.what();
    WriteNumber<char>(1);
    WriteNumber<int32_t>(static_cast<int32_t>(message.size()));
    Write(message.data(), message.size());
    std::fflush(stdout);
    return 1;
  }
  return 0;
}
