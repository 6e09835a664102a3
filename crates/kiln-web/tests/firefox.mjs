// The pages in Firefox: with WebGPU on a driver in software, and without WebGPU. Chromium has the other tests.
// node firefox.mjs URL MODULES FIREFOX [NAME]

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { areLikeliest, randomModel } from "./model.mjs";

const [url, modules, executablePath, only] = process.argv.slice(2);
const puppeteer = createRequire(join(modules, "package.json"))("puppeteer-core");

/** Milliseconds for what takes seconds on a machine that is not busy. */
const PATIENCE = 300_000;

/** Firefox takes no driver in software by default. */
const WEBGPU = { "dom.webgpu.enabled": true, "gfx.webgpu.ignore-blocklist": true };
const launch = (extraPrefsFirefox) =>
  puppeteer.launch({ browser: "firefox", executablePath, headless: true, extraPrefsFirefox, protocolTimeout: PATIENCE });
const [withWebgpu, without] = [await launch(WEBGPU), await launch({ "dom.webgpu.enabled": false })];

const folder = await mkdtemp(join(tmpdir(), "kiln-firefox-"));
const random = randomModel();
const modelFile = join(folder, "random.gguf");
await writeFile(modelFile, random.file);

/** A page that is ready; whatever it throws fails the test. */
async function visit(browser, path) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  await page.goto(url + path);
  await page.waitForFunction(() => document.body.dataset.ready);
  return page;
}

async function leave(page) {
  assert.deepEqual(page.errors, [], "nothing is thrown past the page");
  await page.close();
}

const text = (page, id) => page.$eval(`#${id}`, (element) => element.textContent);

/** Runs operations of some kinds on a place, and compares them with arithmetic by hand. */
async function compute(page, gpu) {
  const seen = await page.evaluate(async (gpu) => {
    const { engine } = window.kiln;
    const place = gpu ? engine.forced(engine.gpu.name) : engine;
    const x = Float32Array.of(1, -2, 3);
    const batch = place.batch();
    const input = batch.input({ data: Float32Array.of(1, 2, 3, 4), dims: [2, 2] });
    const product = batch.matmul(input, input);
    await batch.execute([product]);
    const first = [...await batch.read(product)];
    batch.set(input, Float32Array.of(0, 1, 1, 0));
    await batch.execute([product]);
    return {
      sum: [...(await place.add(x, x))],
      total: await place.sum(x),
      top: (await place.top_k({ data: x, dims: [1, 3] }, { k: 2 })).map((result) => [...result]),
      halves: [...(await place.cast(x, { to: "f16" }))],
      first,
      second: [...await batch.read(product)],
      places: engine.gpu ? 2 : 1,
    };
  }, gpu);
  assert.deepEqual(seen, {
    sum: [2, -4, 6], total: 2, top: [[3, 1], [2, 0]], halves: [0x3c00, 0xc000, 0x4200], first: [7, 10, 15, 22], second: [1, 0, 0, 1],
    places: gpu ? 2 : 1,
  });
}

/** Generates on a device, greedily and drawn, and returns the tokens and how the page calls the device. */
async function generate(page, device) {
  const input = await page.$("#file");
  await page.select("#device", device);
  await input.uploadFile(modelFile);
  await page.waitForFunction(() => document.body.dataset.model);
  assert.equal(await text(page, "problem"), "");
  return page.evaluate(async (device) => {
    const model = await window.kiln.Model.load(document.getElementById("file").files[0], { device, software: true });
    const session = await model.session();
    const prompt = 6;
    for await (const _ of session.generate("Ab", { temperature: 0, maxTokens: 20 }));
    const tokens = [...await session.tokens()];
    const draw = async () => {
      await session.truncate(prompt);
      for await (const _ of session.generate(undefined, { seed: 3, temperature: 1.5, maxTokens: 20 }));
      return [...await session.tokens()];
    };
    const drawn = [await draw(), await draw()];
    model.close();
    return { tokens, drawn, chosen: model.plan?.device };
  }, device);
}

/**
 * Sends a message in the page's chat, which runs in a worker, and returns the line about its rate. The likeliest tokens do not end
 * the answer early; drawn ones may.
 */
async function chat(page) {
  for (const [id, value] of [["maxTokens", "16"], ["temperature", "0"]]) {
    await page.$eval(`#${id}`, (field, value) => { field.value = value; field.dispatchEvent(new Event("input", { bubbles: true })); }, value);
  }
  await page.type("#text", "Hi");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.body.dataset.answered);
  assert.equal(await text(page, "trouble"), "");
  return text(page, "rate");
}

const tests = {
  async "operations run on WebGPU and on the CPU, and the page draws the image"() {
    const page = await visit(withWebgpu, "");
    assert.match(await text(page, "status"), /Measured in \d/);
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "image-caption"), /512 × 512, in .* on /);
    // Firefox does not say which GPU it is.
    assert.match(await text(page, "browser"), /relaxed-simd x1, WebGPU/);
    await compute(page, true);
    await leave(page);
  },

  async "without WebGPU the page says so and computes on the CPU"() {
    const page = await visit(without, "");
    assert.match(await text(page, "browser"), /not available: .*no WebGPU/);
    assert.match(await text(page, "browser"), /128 bits/);
    await compute(page, false);
    await leave(page);
  },

  async "every operation keeps its contract on the CPU"() {
    const page = await visit(without, "");
    await page.click("#verify-run");
    await page.waitForFunction(() => document.body.dataset.verified !== undefined);
    const summary = await text(page, "verify-summary");
    console.log(`  ${summary}`);
    assert.equal(await page.evaluate(() => document.body.dataset.verified), "0", summary);
    await leave(page);
  },

  async "a model on WebGPU and on the CPU gives the likeliest tokens, and a chat runs in a worker"() {
    for (const [browser, device] of [[withWebgpu, "gpu"], [without, "cpu"]]) {
      const page = await visit(browser, "chat.html?software=on");
      const { tokens, drawn } = await generate(page, device);
      assert.equal(tokens.length, 26);
      assert.ok(areLikeliest(random, tokens, 6), `${device}: ${tokens} are not the likeliest`);
      assert.deepEqual(drawn[0], drawn[1], `${device}: a seed repeats`);
      const rate = await chat(page);
      console.log(`  ${rate}`);
      assert.match(rate, device === "gpu" ? /^16 tokens, .* a second, on WebGPU/ : /^16 tokens, .* a second, on simd128 x1/);
      await leave(page);
    }
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests).filter(([name]) => !only || name.includes(only))) {
  const start = performance.now();
  try {
    await test();
    console.log(`ok    ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`WRONG ${name}\n${error.stack}`);
  }
}
await Promise.all([withWebgpu.close(), without.close()]);
await rm(folder, { recursive: true });
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
