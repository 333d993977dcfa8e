// node check.mjs OUT: whether the artifact in the folder OUT gives in onnxruntime-web what it gave when it was compiled.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-web";
import { farthest } from "./golden.mjs";

// Single steps of one code may differ where sums are ordered differently; more is another model.
const ALLOWED = 0.02;

const folder = process.argv[2];
if (!folder) {
  console.error("usage: node check.mjs OUT, a folder that `ptqc compile` wrote");
  process.exit(2);
}
const [model, golden] = await Promise.all(["model.onnx", "golden.safetensors"].map((name) => readFile(join(folder, name))));
const bytes = golden.buffer.slice(golden.byteOffset, golden.byteOffset + golden.byteLength);
const difference = await farthest(ort, new Uint8Array(model), bytes);
console.log(`largest difference ${difference.toExponential(2)} of the largest output`);
process.exit(difference <= ALLOWED ? 0 : 1);
