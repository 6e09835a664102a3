// Kernels in Node 22 or later, on one thread: builds with vectors and with relaxed ones beside the one without, and the matrix
// product beside the gemm crate. Medians, the samples of contenders taken in turns.
// cd benches/web/kernels
// build() { CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="$2" cargo build --release --target wasm32-unknown-unknown --target-dir ../../../target/kiln/$1 $3; }
// build scalar ""
// build simd128 "-C target-feature=+simd128" "--features gemm"
// build relaxed-simd "-C target-feature=+relaxed-simd -C no-vectorize-loops -C no-vectorize-slp"
// node ../kernels.mjs

import { readFile } from "node:fs/promises";

/** The module of a build. Each case has an instance of its own: where operands lie must not follow from the cases before. */
async function load(build) {
  const path = new URL(`../../target/kiln/${build}/wasm32-unknown-unknown/release/kiln_bench_web.wasm`, import.meta.url);
  const module = await WebAssembly.compile(await readFile(path));
  /** Prepares a case, and gives what runs it and its result of `count` elements. */
  return (name, n, count) => {
    const { memory, place, prepare, run } = new WebAssembly.Instance(module, {}).exports;
    const bytes = new TextEncoder().encode(name);
    const at = place(bytes.length);
    new Uint8Array(memory.buffer, at, bytes.length).set(bytes);
    const out = prepare(at, bytes.length, n);
    if (!out) throw new Error(`${build} has no case ${name}`);
    return { run, result: () => new Float32Array(memory.buffer, out, count).slice() };
  };
}

const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];

/** Microseconds that each contender takes, which agree to a ten-thousandth of the greatest result. */
function race(contenders) {
  for (const { run } of contenders) run(1);
  const [first, ...others] = contenders.map(({ result }) => result());
  const most = first.reduce((most, x) => Math.max(most, Math.abs(x)), 0);
  for (const other of others) {
    if (!other.every((x, i) => Math.abs(x - first[i]) <= 1e-4 * most)) throw new Error("the results differ");
  }
  const once = ({ run }, repeats) => {
    const start = performance.now();
    run(repeats);
    return performance.now() - start;
  };
  // Each sample takes about 10 ms; the engine has optimised the code when the first ones are over.
  const repeats = contenders.map((one) => {
    let count = 1;
    while (once(one, count) < 5) count *= 2;
    return 2 * count;
  });
  const times = contenders.map(() => []);
  for (let round = -5; round < 25; round++) {
    contenders.forEach((one, i) => {
      const each = once(one, repeats[i]) / repeats[i];
      if (round >= 0) times[i].push(1000 * each);
    });
  }
  return times.map(median);
}

const builds = [await load("scalar"), await load("simd128"), await load("relaxed-simd")];
const cell = (value, width) => value.toPrecision(3).padStart(width);

const VECTORS = [
  "add", "fma", "sqrt", "exp", "tanh", "sigmoid", "gelu", "gelu_tanh", "sum", "max_element", "argmax", "norm_l2", "dot",
];
const REDUCTIONS = new Set(VECTORS.slice(8));
const SQUARES = [["softmax", 256], ["convolve2d", 256], ["attention", 256], ["quant_matmul", 1024], ["matmul", 128], ["matmul", 512]];

console.log("extent    operation        scalar µs  simd128 µs  relaxed µs  scalar / simd128  scalar / relaxed");
for (const [name, n, square] of [
  ...[4096, 65536].flatMap((n) => VECTORS.map((name) => [name, n, false])), ...SQUARES.map(([name, n]) => [name, n, true]),
]) {
  const count = REDUCTIONS.has(name) ? 1 : square && name !== "quant_matmul" ? n * n : n;
  const [slow, ...fast] = race(builds.map((prepare) => prepare(name, n, count)));
  const times = [slow, ...fast].map((time) => cell(time, 11)).join(" ");
  console.log(`${String(n).padEnd(9)} ${name.padEnd(14)} ${times} ${fast.map((time) => cell(slow / time, 17)).join(" ")}`);
}

console.log("\nn       simd128 GFLOP/s  relaxed GFLOP/s  gemm GFLOP/s  simd128 / gemm  relaxed / gemm");
for (const n of [64, 128, 256, 512, 1024]) {
  const [, simd128, relaxed] = builds;
  const times = race([simd128("matmul", n, n * n), relaxed("matmul", n, n * n), simd128("gemm", n, n * n)]);
  const rates = times.map((time) => (2 * n ** 3) / (1000 * time));
  const ratios = rates.slice(0, 2).map((rate) => cell(rate / rates[2], 15)).join(" ");
  console.log(`${String(n).padEnd(6)} ${cell(rates[0], 16)} ${cell(rates[1], 16)} ${cell(rates[2], 13)} ${ratios}`);
}
