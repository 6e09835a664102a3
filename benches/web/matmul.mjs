// Square f32 products in Node, on one thread with simd128, beside the gemm crate: medians, the samples taken in turns.
// cargo xtask web
// (cd benches/web/gemm && CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="-C target-feature=+simd128" cargo build --release --target wasm32-unknown-unknown --target-dir ../../../target/kiln/gemm)
// node benches/web/matmul.mjs

import { readFile } from "node:fs/promises";

const target = new URL("../../target/", import.meta.url);
const kiln = await import(new URL("web/simd128/kiln_web.js", target));
kiln.initSync({ module: await readFile(new URL("web/simd128/kiln_web_bg.wasm", target)) });
const created = await kiln.Engine.create({ webgpu: false });
const engine = created.forced((await created.places()).at(-1).name);
const peer = await WebAssembly.instantiate(
  await readFile(new URL("kiln/gemm/wasm32-unknown-unknown/release/kiln_bench_web_gemm.wasm", target)), {},
);
const { matrix, multiply, memory } = peer.instance.exports;

const random = (n) => Float32Array.from({ length: n }, () => Math.random() - 0.5);
const median = (times) => times.toSorted((a, b) => a - b)[times.length >> 1];

console.log("n       kiln GFLOP/s   gemm GFLOP/s   kiln / gemm");
for (const n of [64, 128, 256, 512, 1024]) {
  const [a, b] = [random(n * n), random(n * n)];
  const batch = engine.batch();
  const product = batch.record("matmul", [a, b].map((data) => batch.input({ data, dims: [n, n] })));
  const places = [0, 1, 2].map((which) => matrix(which, n));
  new Float32Array(memory.buffer, places[0], n * n).set(a);
  new Float32Array(memory.buffer, places[1], n * n).set(b);
  const runs = [() => batch.execute(product), () => multiply(n)];
  for (const run of runs) await run();
  const [ours, theirs] = [batch.read(product[0]), new Float32Array(memory.buffer, places[2], n * n)];
  const apart = ours.reduce((most, x, i) => Math.max(most, Math.abs(x - theirs[i])), 0);
  if (!(apart < 1e-4 * n)) throw new Error(`the products of ${n} are ${apart} apart`);
  const repeats = Math.max(1, Math.round(2e8 / (2 * n ** 3)));
  const times = [[], []];
  for (let round = -2; round < 15; round++) {
    for (const [i, run] of runs.entries()) {
      const start = performance.now();
      for (let repeat = 0; repeat < repeats; repeat++) await run();
      if (round >= 0) times[i].push((performance.now() - start) / repeats);
    }
  }
  const [x, y] = times.map((samples) => (2 * n ** 3) / (1e6 * median(samples)));
  console.log(`${String(n).padEnd(6)} ${x.toFixed(2).padStart(13)} ${y.toFixed(2).padStart(14)} ${(x / y).toFixed(2).padStart(13)}`);
  batch.free();
}
