// node expand.mjs PACKED EXPANDED [GOLDEN]: a file that `ptqc compile` wrote, unpacked once, so that it loads faster.
//
// GOLDEN is the artifact's golden.safetensors: the new file gets its name only if it gives the outputs that are in it.
import { readFile, rename, rm } from "node:fs/promises";
import * as ort from "onnxruntime-node";

/** Write the packed file unpacked: what ONNX Runtime makes of it whenever it loads it, at a level at which nothing in
 * the file depends on the processor. It is of this release of ONNX Runtime: make it again after an update. */
async function expand(packed, expanded) {
  const session = await ort.InferenceSession.create(packed, {
    graphOptimizationLevel: "extended",
    optimizedModelFilePath: expanded,
  });
  await session.release();
}

const TYPES = {
  F32: ["float32", Float32Array],
  I64: ["int64", BigInt64Array],
  I32: ["int32", Int32Array],
  U8: ["uint8", Uint8Array],
  I8: ["int8", Int8Array],
  BOOL: ["bool", Uint8Array],
};

/** The samples of a safetensors file: a length of 8 bytes, a header in JSON, and the arrays one after the other. */
function samplesOf(data) {
  const length = Number(data.readBigUInt64LE(0));
  const samples = [];
  for (const [key, entry] of Object.entries(JSON.parse(data.toString("utf8", 8, 8 + length)))) {
    if (key === "__metadata__") continue;
    const [number, role, ...name] = key.split(".");
    if (!(entry.dtype in TYPES)) throw new Error(`this example reads no golden samples of type ${entry.dtype}`);
    const [type, Numbers] = TYPES[entry.dtype];
    const [start, end] = entry.data_offsets.map((offset) => data.byteOffset + 8 + length + offset);
    const tensor = new ort.Tensor(type, new Numbers(data.buffer.slice(start, end)), entry.shape);
    (samples[number] ??= { input: {}, output: {} })[role][name.join(".")] = tensor;
  }
  return samples;
}

const bytesOf = ({ buffer, byteOffset, byteLength }) => Buffer.from(buffer, byteOffset, byteLength);

/** Whether a file gives the recorded outputs, bit by bit. */
async function gives(model, samples) {
  const session = await ort.InferenceSession.create(model);
  for (const { input, output } of samples) {
    const results = await session.run(input);
    for (const [name, wanted] of Object.entries(output)) {
      if (!bytesOf(results[name].data).equals(bytesOf(wanted.data))) return false;
    }
  }
  return samples.length > 0;
}

const [packed, expanded, golden] = process.argv.slice(2);
if (!expanded) {
  console.error("usage: node expand.mjs PACKED EXPANDED [GOLDEN]");
  process.exit(2);
}
const unfinished = `${expanded}.part`;
try {
  await expand(packed, unfinished);
  if (golden && !(await gives(unfinished, samplesOf(await readFile(golden))))) {
    throw new Error("the expanded file gives other outputs than were recorded: go on with the packed one");
  }
  await rename(unfinished, expanded); // whole, or not there: what was cut short has another name
  console.log(`${expanded}, ${golden ? "gives the recorded outputs" : "was not checked"}`);
} catch (error) {
  await rm(unfinished, { force: true });
  console.error(error.message);
  process.exitCode = 1;
}
