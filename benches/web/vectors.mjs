// The build with vectors beside the one without, in Node: medians, the samples of the two taken in turns.
// cargo xtask web && node benches/web/vectors.mjs

import { readFile } from "node:fs/promises";

const folder = new URL("../../target/web/", import.meta.url);

async function load(build) {
  const module = await import(new URL(`${build}/kiln_web.js`, folder));
  module.initSync({ module: await readFile(new URL(`${build}/kiln_web_bg.wasm`, folder)) });
  const engine = await module.Engine.create({ webgpu: false });
  return engine.forced((await engine.places()).at(-1).name);
}

const random = (n) => Float32Array.from({ length: n }, () => Math.random() + 0.5);

/** A batch keeps its inputs in the module: what is timed is the operation alone. */
function prepared(engine, name, tensors, params) {
  const batch = engine.batch();
  const inputs = tensors.map((tensor) => batch.input(tensor));
  const results = batch.record(name, inputs, params);
  return () => batch.execute(results);
}

const n = 1 << 16;
const vector = () => ({ data: random(n), dims: [n] });
const matrix = (m) => ({ data: random(m * m), dims: [m, m] });
const CASES = [
  ["matmul 512", "matmul", [matrix(512), matrix(512)]],
  ["matmul 128", "matmul", [matrix(128), matrix(128)]],
  ...["add", "fma", "sqrt", "exp", "tanh", "gelu", "sigmoid"].map((name) => [
    `${name} ${n}`, name, Array.from({ length: { add: 2, fma: 3 }[name] ?? 1 }, vector),
  ]),
  ...["sum", "max_element", "norm_l2", "argmax"].map((name) => [`${name} ${n}`, name, [vector()]]),
  ["dot 65536", "dot", [vector(), vector()]],
  ["softmax 256 x 256", "softmax", [matrix(256)]],
];

const engines = [await load("simd128"), await load("scalar")];
const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];
console.log("operation            simd128 µs   scalar µs   scalar / simd128");
for (const [title, name, tensors] of CASES) {
  const runs = engines.map((engine) => prepared(engine, name, tensors));
  const times = [[], []];
  const repeats = [1, 1];
  for (let round = -1; round < 15; round++) {
    for (const [i, run] of runs.entries()) {
      const start = performance.now();
      for (let repeat = 0; repeat < repeats[i]; repeat++) await run();
      const each = (performance.now() - start) / repeats[i];
      if (round >= 0) times[i].push(each);
      // The first round makes the plan and says how often a sample repeats.
      else repeats[i] = Math.max(1, Math.ceil(4 / Math.max(each, 0.004)));
    }
  }
  const [simd, scalar] = times.map((samples) => 1000 * median(samples));
  const cell = (value, width) => value.toPrecision(3).padStart(width);
  console.log(`${title.padEnd(20)} ${cell(simd, 10)} ${cell(scalar, 11)} ${cell(scalar / simd, 17)}`);
}
