// Runs a compiled model on the golden samples that lie beside it, and says how far its outputs are from the kept ones.

// What golden.safetensors has of the types that models take and give; ONNX Runtime's names for them.
const TYPES = {
  F32: ["float32", Float32Array],
  I64: ["int64", BigInt64Array],
  I32: ["int32", Int32Array],
  U8: ["uint8", Uint8Array],
  I8: ["int8", Int8Array],
  BOOL: ["bool", Uint8Array],
};

/** The samples of a safetensors file: [{inputs: {name: tensor}, outputs: {name: numbers}}]. */
export function readGolden(ort, buffer) {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const samples = [];
  for (const [key, entry] of Object.entries(header)) {
    if (key === "__metadata__") continue;
    const [number, role, ...rest] = key.split(".");
    if (!(entry.dtype in TYPES)) throw new Error(`${key} has the type ${entry.dtype}, which this example does not read`);
    const [type, Numbers] = TYPES[entry.dtype];
    const [start, end] = entry.data_offsets;
    const numbers = new Numbers(buffer.slice(8 + length + start, 8 + length + end));
    const sample = (samples[number] ??= { inputs: {}, outputs: {} });
    if (role === "input") sample.inputs[rest.join(".")] = new ort.Tensor(type, numbers, entry.shape);
    else sample.outputs[rest.join(".")] = numbers;
  }
  return samples;
}

/** The largest difference of any output from the kept one, as a share of that output's largest magnitude. */
export async function farthest(ort, model, golden) {
  const session = await ort.InferenceSession.create(model, { executionProviders: ["wasm"] });
  let worst = 0;
  for (const { inputs, outputs } of readGolden(ort, golden)) {
    const found = await session.run(inputs);
    for (const [name, wanted] of Object.entries(outputs)) {
      const got = found[name].data;
      let scale = 0;
      let difference = 0;
      for (let place = 0; place < wanted.length; place++) {
        scale = Math.max(scale, Math.abs(Number(wanted[place])));
        difference = Math.max(difference, Math.abs(Number(got[place]) - Number(wanted[place])));
      }
      worst = Math.max(worst, difference / (scale || 1));
    }
  }
  return worst;
}
