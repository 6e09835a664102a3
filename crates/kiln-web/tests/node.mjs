// The module in Node, where there is no WebGPU: every operation against the reference, on every build.
// node node.mjs FOLDER

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import v8 from "node:v8";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2]);

const { build: best } = await import(pathToFileURL(`${folder}/kiln.js`));
const builds = ["relaxed-simd", "simd128", "scalar"];
// Node has relaxed instructions since 22, and they are fused where the processor can.
if (best !== builds[0]) console.log(`${builds.shift()} is not what this Node takes: tested in Chromium alone`);

/** What a promise is rejected with. */
const rejected = (promise) => promise.then(() => ["nothing"], ({ name, code }) => [name, code]);

/** A module with memory of its own. */
async function load(build, instance = "") {
  const module = await import(`${pathToFileURL(`${folder}/${build}/kiln_web.js`)}?${instance}`);
  module.initSync({ module: await readFile(`${folder}/${build}/kiln_web_bg.wasm`) });
  return module;
}

for (const build of builds) {
  const module = await load(build);
  const engine = await module.Engine.create({});
  const places = await engine.places();
  const last = places.at(-1);
  assert.equal(last.backend, build === "scalar" ? "scalar" : "simd");
  assert.equal(last.name, `${build} x1`);
  assert.equal(places.length, 1);
  assert.match(engine.problem(), /no WebGPU/);
  assert.deepEqual(await rejected(module.Engine.create({ webgpu: "required" })), ["KilnError", "unavailable"]);
  const profile = JSON.parse(await engine.calibrate(1));
  assert.deepEqual(profile.places.map((place) => place.name), places.map((place) => place.name));
  const names = module.verifiable();
  assert.ok(names.length > 40, `${names.length} operations`);
  let cases = 0;
  for (const name of names) {
    const { cases: count, elements, failures } = await engine.verify(name, last.name, 5000, 1);
    assert.deepEqual(failures, [], name);
    assert.ok(count > 0 && elements > 0, `${name} has cases`);
    cases += count;
  }
  console.log(`${build}: ${names.length} operations, ${cases} cases within their bounds on ${last.name}`);
}

// Parameters may be tensors, and the first tensor of a batch is the number 0.
for (const build of builds) {
  const engine = await (await load(build, "masked")).Engine.create({});
  const batch = engine.batch();
  const mask = batch.input({ data: Float32Array.of(0, -Infinity), dims: [1, 2] });
  const q = batch.input({ data: Float32Array.of(1), dims: [1, 1, 1] });
  const kv = batch.input({ data: Float32Array.of(1, 2), dims: [1, 2, 1] });
  const [y] = batch.record("attention", [q, kv, kv, mask], { mask });
  await batch.execute([y]);
  assert.deepEqual([...await batch.read(y)], [1]);
  assert.throws(() => batch.record("convolve1d", [kv, kv], { padding: [1, 2, 3, 4] }), /expected valid, same or \[before, after\]/);
  console.log(`${build}: parameters may be tensors`);
}

// Memory that ends, as that of a page does: what has no room is refused, and what has is computed afterwards.
v8.setFlagsFromString("--wasm-max-mem-pages=2048");
for (const build of builds) {
  const engine = await (await load(build, "small")).Engine.create({});
  const outer = (n) => [{ data: new Float32Array(n), dims: [n, 1] }, { data: new Float32Array(n), dims: [1, n] }];
  // 256 MB where 128 are all there is, of one result and of many.
  assert.deepEqual(await rejected(engine.run("matmul", outer(8000))), ["KilnError", "out-of-memory"]);
  const batch = engine.batch();
  const operands = outer(2000).map((operand) => batch.input(operand));
  const products = Array.from({ length: 16 }, (_, i) => batch.record("scale", batch.record("matmul", operands), { factor: i + 2 })[0]);
  assert.deepEqual(await rejected(batch.execute(products)), ["KilnError", "out-of-memory"]);
  assert.throws(() => { for (;;) batch.input(new Float32Array(100_000)); }, { name: "KilnError", code: "out-of-memory" });
  batch.free();
  const [{ data }] = await engine.run("matmul", outer(10).map((operand) => ({ ...operand, data: operand.data.fill(3) })));
  assert.deepEqual([...data], Array(100).fill(9));
  console.log(`${build}: what has no room is refused`);
}
