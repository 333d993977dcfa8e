// expand PACKED EXPANDED [GOLDEN]: a file that `ptqc compile` wrote, unpacked once, so that it loads faster from then on.
//
// GOLDEN is the artifact's golden.safetensors: the new file gets its name only if it gives the outputs that are in it.
#include <onnxruntime_cxx_api.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <regex>
#include <stdexcept>
#include <string>
#include <vector>

namespace fs = std::filesystem;

// --- The recipe: what an application needs. ---

/// Writes the packed file unpacked: what ONNX Runtime makes of it whenever it loads it. At this level nothing in the file
/// depends on the processor, but it is of this release of ONNX Runtime: name it after Ort::GetVersionString().
void expand(Ort::Env& environment, const fs::path& packed, const fs::path& expanded) {
  Ort::SessionOptions options;
  options.SetGraphOptimizationLevel(ORT_ENABLE_EXTENDED);
  options.SetOptimizedModelFilePath(expanded.c_str());
  Ort::Session session(environment, packed.c_str(), options);
}

// --- Golden samples: safetensors, a length of 8 bytes, a header in JSON, and the arrays one after the other. ---

struct Array {
  std::string type;
  std::vector<int64_t> shape;
  std::vector<char> bytes;
};

using Sample = std::map<std::string, std::map<std::string, Array>>;  // "input" and "output" -> name -> array

std::vector<int64_t> numbers(const std::string& text) {
  std::vector<int64_t> result;
  const std::regex digits("\\d+");
  for (std::sregex_iterator number(text.begin(), text.end(), digits), end; number != end; ++number)
    result.push_back(std::stoll(number->str()));
  return result;
}

std::map<std::string, Sample> read_golden(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string data{std::istreambuf_iterator<char>(file), {}};
  uint64_t length = 0;
  if (data.size() < sizeof length) throw std::runtime_error(path.string() + " holds no golden samples");
  std::memcpy(&length, data.data(), sizeof length);
  const std::string header = data.substr(sizeof length, length);
  const std::regex entry(
      "\"(\\d+)\\.(input|output)\\.([^\"]+)\":\\{\"dtype\":\"(\\w+)\",\"shape\":\\[([^\\]]*)\\],\"data_offsets\":\\[([^\\]]*)\\]");
  std::map<std::string, Sample> samples;
  for (std::sregex_iterator match(header.begin(), header.end(), entry), end; match != end; ++match) {
    const auto& found = *match;
    const auto place = numbers(found[6]);
    const char* first = data.data() + sizeof length + length;
    samples[found[1]][found[2]][found[3]] = {found[4], numbers(found[5]), {first + place[0], first + place[1]}};
  }
  return samples;
}

ONNXTensorElementDataType element_type(const std::string& name) {
  static const std::map<std::string, ONNXTensorElementDataType> types = {
      {"F32", ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT}, {"I64", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64},
      {"I32", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32}, {"U8", ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8},
      {"I8", ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8},   {"BOOL", ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL}};
  if (!types.count(name)) throw std::runtime_error("this example reads no golden samples of type " + name);
  return types.at(name);
}

/// Whether a file gives the recorded outputs, bit by bit.
bool gives(Ort::Env& environment, const fs::path& model, std::map<std::string, Sample> samples) {
  Ort::Session session(environment, model.c_str(), Ort::SessionOptions{});
  const auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  if (samples.empty()) throw std::runtime_error("there is no golden sample");
  for (auto& [number, sample] : samples) {
    std::vector<const char*> inputs, outputs;
    std::vector<Ort::Value> values;
    for (auto& [name, array] : sample["input"]) {
      inputs.push_back(name.c_str());
      values.push_back(Ort::Value::CreateTensor(memory, array.bytes.data(), array.bytes.size(), array.shape.data(),
                                                array.shape.size(), element_type(array.type)));
    }
    for (auto& [name, array] : sample["output"]) outputs.push_back(name.c_str());
    const auto results = session.Run(Ort::RunOptions{}, inputs.data(), values.data(), values.size(), outputs.data(),
                                     outputs.size());
    for (size_t place = 0; place < outputs.size(); ++place) {
      const auto& wanted = sample["output"][outputs[place]];
      if (results[place].GetTensorTypeAndShapeInfo().GetShape() != wanted.shape ||
          std::memcmp(results[place].GetTensorRawData(), wanted.bytes.data(), wanted.bytes.size()) != 0)
        return false;
    }
  }
  return true;
}

/// Deletes a file in the end, if it is still there.
struct Unfinished {
  fs::path path;
  ~Unfinished() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
};

int main(int count, char** words) try {
  if (count != 3 && count != 4) {
    std::cerr << "usage: expand PACKED EXPANDED [GOLDEN]\n";
    return 2;
  }
  const fs::path packed = words[1], expanded = words[2];
  const Unfinished unfinished{expanded.string() + ".part"};
  Ort::Env environment(ORT_LOGGING_LEVEL_FATAL, "expand");
  expand(environment, packed, unfinished.path);
  if (count == 4 && !gives(environment, unfinished.path, read_golden(words[3])))
    throw std::runtime_error("the expanded file gives other outputs than were recorded: go on with the packed one");
  fs::rename(unfinished.path, expanded);  // whole, or not there: what was cut short has another name
  std::cout << expanded.string() << (count == 4 ? ", gives the recorded outputs\n" : ", was not checked\n");
  return 0;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
