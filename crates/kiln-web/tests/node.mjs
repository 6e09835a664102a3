// The module in Node, where there is no WebGPU: every operation against the reference, on both builds.
// node node.mjs FOLDER

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const folder = resolve(process.argv[2]);

for (const build of ["simd128", "scalar"]) {
  const module = await import(pathToFileURL(`${folder}/${build}/kiln_web.js`));
  module.initSync({ module: await readFile(`${folder}/${build}/kiln_web_bg.wasm`) });
  const engine = await module.Engine.create({});
  const places = await engine.places();
  const last = places.at(-1);
  assert.equal(last.backend, build === "simd128" ? "simd" : "scalar");
  assert.match(engine.problem(), /no WebGPU/);
  const profile = JSON.parse(await engine.calibrate(1));
  assert.deepEqual(profile.places.map((place) => place.name), places.map((place) => place.name));
  const names = module.verifiable();
  assert.ok(names.length > 40, `${names.length} operations`);
  let cases = 0;
  for (const name of names) {
    const { cases: count, elements, failures } = await engine.verify(name, last.name, 5000);
    assert.deepEqual(failures, [], name);
    assert.ok(count > 0 && elements > 0, `${name} has cases`);
    cases += count;
  }
  console.log(`${build}: ${names.length} operations, ${cases} cases within their bounds on ${last.name}`);
}
