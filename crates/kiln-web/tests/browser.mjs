// The page, driven as a person would, and what goes wrong, in Chromium with WebGPU in software.
// node browser.mjs URL MODULES SCREENSHOTS [CHROMIUM [NAME]]

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { areLikeliest, harmonyModel, largeModel, randomModel } from "./model.mjs";

const [url, modules, screenshots, executablePath = "/usr/bin/chromium", only] = process.argv.slice(2);
const { chromium } = createRequire(join(modules, "package.json"))("playwright-core");

/** Milliseconds for what takes seconds on a machine that is not busy. */
const PATIENCE = 300_000;
/** Milliseconds after which a test counts as one that never ends. */
const MOST = 600_000;
const QUIET = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"];
const WEBGPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

const withWebgpu = await chromium.launch({ executablePath, args: [...QUIET, ...WEBGPU] });

let profile;

/** A fresh page with its own storage, and a profile kept there unless it is null; whatever it throws fails the test. */
async function visit(browser, { path = "", before, kept = profile, ...options } = {}) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  page.errors = [];
  page.on("pageerror", (error) => page.errors.push(error.message));
  // Measured once: the visits after the first find the profile where the page keeps it.
  if (kept) {
    await page.addInitScript((kept) => { if (!localStorage.getItem("kiln-profile")) localStorage.setItem("kiln-profile", kept); }, kept);
  }
  if (before) await page.addInitScript(before);
  await page.goto(url + path);
  await page.waitForFunction(() => document.body.dataset.ready);
  profile ??= await page.evaluate(() => localStorage.getItem("kiln-profile"));
  return page;
}

async function leave(page) {
  assert.deepEqual(page.errors, [], "nothing is thrown past the page");
  await page.context().close();
}

const text = (page, id) => page.locator(`#${id}`).textContent();

const random = randomModel();
const randomFile = { name: "random.gguf", mimeType: "application/octet-stream", buffer: Buffer.from(random.file) };

/** The page of models, with a model of its file picker. */
async function visitChat({ path = "", load = randomFile, device = "gpu", ...options } = {}) {
  const page = await visit(withWebgpu, { path: `chat.html?software=on${path}`, ...options });
  if (load) {
    if (device) await page.selectOption("#device", device);
    await page.setInputFiles("#file", load);
    await page.waitForFunction(() => document.body.dataset.model);
  }
  return page;
}

/** Sends a message by keyboard, and returns the text of the last answer. */
async function send(page, message) {
  const answered = Number(await page.evaluate(() => document.body.dataset.answered ?? 0));
  await page.locator("#text").fill(message);
  await page.keyboard.press("Enter");
  await page.waitForFunction((answered) => Number(document.body.dataset.answered) > answered, answered);
  return (await page.locator("#log .model p").allTextContents()).at(-1);
}

// Runs in a page: counts submissions and readbacks of WebGPU in `window.counted` from then on, and the readbacks that other work was
// submitted behind before they were complete.
const countCalls = () => {
  window.counted = { submissions: 0, readbacks: 0, late: 0 };
  const { submit } = GPUQueue.prototype;
  GPUQueue.prototype.submit = function (buffers) {
    counted.submissions += 1;
    return submit.call(this, buffers);
  };
  const { mapAsync } = GPUBuffer.prototype;
  GPUBuffer.prototype.mapAsync = function (mode, ...range) {
    const mapped = mapAsync.call(this, mode, ...range);
    if (mode === GPUMapMode.READ) {
      counted.readbacks += 1;
      const before = counted.submissions;
      mapped.then(() => { if (counted.submissions > before) counted.late += 1; }, () => {});
    }
    return mapped;
  };
};

const tests = {
  async "the API runs operations on WebGPU and on the CPU"() {
    const page = await visit(withWebgpu);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const gpu = engine.forced(engine.gpu.name);
      const x = Float32Array.of(1, -2, 3);
      const batch = gpu.batch();
      const input = batch.input({ data: Float32Array.of(1, 2, 3, 4), dims: [2, 2] });
      const product = batch.matmul(input, input);
      const wanted = batch.softmax(batch.scale(product, { factor: 0 }));
      await batch.execute([wanted, product]);
      const first = [...await batch.read(product)];
      batch.set(input, Float32Array.of(0, 1, 1, 0));
      await batch.execute([wanted, product]);
      return {
        sum: [...(await gpu.add(x, x))],
        total: await gpu.sum(x),
        along: [...(await gpu.sum({ data: x, dims: [1, 3] }, { axis: 0 }))],
        product: [...(await gpu.matmul({ data: x, dims: [1, 3] }, { data: x, dims: [3, 1] }))],
        top: (await gpu.top_k({ data: x, dims: [1, 3] }, { k: 2 })).map((result) => [...result]),
        halves: [...(await gpu.cast(x, { to: "f16" }))],
        bytes: [...(await gpu.cast({ data: Uint16Array.of(0x3fc0, 0xc000, 0x4396), dtype: "bf16" }, { to: "i8" }))],
        chosen: gpu.explain("add", [[3], [3]]).chosen === engine.gpu.name,
        first,
        second: [...await batch.read(product)],
        softmax: [...await batch.read(wanted)],
        dims: batch.dims(product),
      };
    });
    assert.deepEqual(seen, {
      sum: [2, -4, 6], total: 2, along: [1, -2, 3], product: [14], top: [[3, 1], [2, 0]], halves: [0x3c00, 0xc000, 0x4200],
      bytes: [1, -2, 127],
      chosen: true, first: [7, 10, 15, 22], second: [1, 0, 0, 1], softmax: [0.5, 0.5, 0.5, 0.5], dims: [2, 2],
    });
    await leave(page);
  },

  async "the page measures, keeps the profile, and draws the image"() {
    const page = await visit(withWebgpu, { kept: null });
    assert.match(await text(page, "status"), /Measured in \d/);
    assert.match(await text(page, "browser"), /swiftshader.*software/i);
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "image-caption"), /512 × 512, in .* on /);
    assert.match(await text(page, "image-why"), /predicted/);
    assert.equal(await page.locator("#image-places tbody tr").count(), 2);
    // The filtered image differs from the original, and has more than one shade.
    const pixels = (id) => page.evaluate((id) => {
      const canvas = document.getElementById(id);
      return [...new Uint32Array(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.buffer)];
    }, id);
    const before = await pixels("filtered");
    assert.ok(new Set(before).size > 50, "shades");
    const drawn = Number(await page.evaluate(() => document.body.dataset.drawn));
    await page.locator("#blur").focus();
    for (let i = 0; i < 5; i++) await page.keyboard.press("ArrowRight");
    await page.waitForFunction((drawn) => Number(document.body.dataset.drawn) > drawn, drawn);
    assert.match(await text(page, "blur-value"), /1\.7 px/);
    await page.waitForTimeout(300);
    assert.notDeepEqual(await pixels("filtered"), before);
    // The profile is found again.
    await page.reload();
    await page.waitForFunction(() => document.body.dataset.ready === "true");
    assert.match(await text(page, "status"), /^Everything is ready/);
    assert.match(await text(page, "browser"), /kept by the program/);
    // And one that is damaged is measured anew.
    await page.evaluate(() => localStorage.setItem("kiln-profile", "{"));
    await page.reload();
    await page.waitForFunction(() => document.body.dataset.ready === "true");
    assert.match(await text(page, "status"), /Measured in/);
    await leave(page);
  },

  async "calibration gives a profile of every place"() {
    const page = await visit(withWebgpu);
    const seconds = await page.evaluate(async () => {
      const start = performance.now();
      const profile = JSON.parse(await window.kiln.engine.calibrate({ seconds: 1 }));
      return { took: (performance.now() - start) / 1000, classes: profile.classes.map((class_) => class_.op), places: profile.places };
    });
    // How many there is time for is the machine's affair.
    console.log(`  ${seconds.took.toFixed(2)} s, ${seconds.classes.length} classes: ${seconds.classes.join(", ")}`);
    assert.equal(seconds.places.length, 2);
    // However long the GPU takes to compile, the constants of the CPU are measured: a level of bandwidth for each size.
    assert.equal(seconds.places[0].roofline.levels.length, 4);
    await leave(page);
  },

  async "the bench plots every place"() {
    const page = await visit(withWebgpu);
    await page.selectOption("#bench-operation", "gelu");
    await page.click("#bench-run");
    await page.waitForFunction(() => document.body.dataset.bench === "gelu");
    assert.equal(await page.locator("#chart svg path.simd").count(), 1);
    assert.equal(await page.locator("#chart svg path.gpu").count(), 1);
    assert.ok((await page.locator("#chart svg circle").count()) > 10);
    assert.equal(await page.locator("#bench-table tbody tr").count(), 13);
    assert.match(await text(page, "bench-caption"), /router/);
    // Said to who does not see it: once, not with every size.
    assert.equal(await text(page, "bench-status"), await text(page, "bench-caption"));
    await page.screenshot({ path: join(screenshots, "bench.png"), fullPage: true });
    await leave(page);
  },

  async "every operation keeps its contract on every place"() {
    const page = await visit(withWebgpu);
    await page.click("#verify-run");
    await page.waitForFunction(() => document.body.dataset.verified !== undefined);
    const summary = await text(page, "verify-summary");
    console.log(`  ${summary}`);
    assert.equal(await page.evaluate(() => document.body.dataset.verified), "0", summary);
    assert.ok((await page.locator("#verify-table tbody tr").count()) > 40);
    // A division is exact on the CPU, and not on a GPU.
    assert.match(await page.locator("#verify-table tbody tr", { has: page.locator("th", { hasText: /^div$/ }) }).locator("td").last().textContent(), /^exact \/ .*ULP$/);
    await page.screenshot({ path: join(screenshots, "verified.png"), fullPage: true });
    await leave(page);
  },

  async "a long batch is cut into submissions, and read back once"() {
    const page = await visit(withWebgpu, { before: countCalls });
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const batch = engine.forced(engine.gpu.name).batch();
      const input = batch.input({ data: Float32Array.of(1, 2, 3, 4), dims: [2, 2] });
      const wanted = Array.from({ length: 100 }).reduce((x) => batch.softmax(x), input);
      await batch.execute([wanted]);
      const { submissions, readbacks } = window.counted;
      batch.set(input, Float32Array.of(4, 3, 2, 1));
      const [[first, second]] = await batch.run([wanted]);
      return { submissions: counted.submissions - submissions, readbacks: counted.readbacks - readbacks, even: Math.abs(first - second) < 1e-6 };
    });
    // 64 dispatches each.
    assert.deepEqual(seen, { submissions: 2, readbacks: 1, even: true });
    await leave(page);
  },

  async "tensors are split along a dimension"() {
    const page = await visit(withWebgpu);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const x = { data: Float32Array.of(1, 2, 3, 4, 5, 6), dims: [2, 3] };
      const parts = (await engine.split(x, { axis: 1, lengths: [1, 2] })).map((part) => [...part]);
      const batch = engine.batch();
      const rows = batch.split(batch.input(x), { axis: 0, lengths: [1, 1] });
      const dims = rows.map((row) => [...batch.dims(row)]);
      const [, second] = await batch.run(rows);
      const wrong = await engine.split(x, { axis: 1, lengths: [1, 1] }).catch(({ name, code }) => [name, code]);
      return { parts, dims, second: [...second], wrong };
    });
    assert.deepEqual(seen, { parts: [[1, 4], [2, 3, 5, 6]], dims: [[1, 3], [1, 3]], second: [4, 5, 6], wrong: ["KilnError", "view"] });
    await leave(page);
  },

  async "elements are sorted by their indices alone"() {
    const page = await visit(withWebgpu);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const x = { data: Float32Array.of(3, 1, 2, -1, 5, 0), dims: [2, 3] };
      const rows = [...await engine.argsort(x, { axis: 1 })];
      const batch = engine.batch();
      const [columns] = await batch.run([batch.argsort(batch.input(x), { axis: 0, descending: true })]);
      return { rows, columns: [...columns] };
    });
    assert.deepEqual(seen, { rows: [1, 2, 0, 0, 2, 1], columns: [0, 1, 0, 1, 0, 1] });
    await leave(page);
  },

  async "a lost device is recovered from"() {
    const page = await visit(withWebgpu);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const gpu = engine.forced(engine.gpu.name);
      const x = Float32Array.of(1, 2, 3);
      const batch = gpu.batch();
      const input = batch.input(x);
      const doubled = batch.add(input, input);
      await batch.execute([doubled]);
      await engine.destroyDevice();
      const after = [...(await gpu.add(x, x))];
      await batch.execute([doubled]);
      return { after, batch: [...await batch.read(doubled)] };
    });
    assert.deepEqual(seen, { after: [2, 4, 6], batch: [2, 4, 6] });
    await leave(page);
  },

  async "a device that is lost for good leaves its work to the CPU"() {
    const page = await visit(withWebgpu);
    const seen = await page.evaluate(async () => {
      const { engine, Engine } = window.kiln;
      const own = await Engine.create({ software: true });
      const gpu = own.forced(own.gpu.name);
      await own.destroyDevice();
      navigator.gpu.requestAdapter = async () => null;
      const forced = await gpu.add(Float32Array.of(1), Float32Array.of(2)).catch((error) => error.code);
      // Large enough for the GPU by the constants of an engine that measured nothing.
      const n = 512;
      const square = { data: new Float32Array(n * n).fill(1), dims: [n, n] };
      const chosen = own.explain("matmul", [[n, n], [n, n]]).chosen;
      const product = await own.matmul(square, square);
      return { forced, gpu: chosen === own.gpu.name, product: product[0], places: engine.places.length };
    });
    assert.deepEqual(seen, { forced: "device-lost", gpu: true, product: 512, places: 2 });
    await leave(page);
  },

  async "errors are typed and reject the promise"() {
    const page = await visit(withWebgpu);
    const codes = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const gpu = engine.forced(engine.gpu.name);
      const code = async (call) => {
        try {
          await call();
          return "nothing";
        } catch (error) {
          return `${error.name} ${error.code}`;
        }
      };
      const batch = gpu.batch();
      const input = batch.input(Float32Array.of(1, 2));
      const running = gpu.batch();
      const long = running.sqrt(running.input(new Float32Array(1000)));
      const promise = running.execute([long]);
      await null;
      await null;
      const busy = await code(() => running.read(long));
      await promise;
      const seen = {
        shape: await code(() => gpu.add(new Float32Array(3), new Float32Array(4))),
        length: await code(() => gpu.matmul({ data: new Float32Array(3), dims: [2, 2] }, { data: new Float32Array(4), dims: [2, 2] })),
        index: await code(() => gpu.gather({ data: new Float32Array(4), dims: [2, 2] }, Uint32Array.of(2))),
        overflow: await code(() => gpu.run("add", [{ data: new Float32Array(1), dims: [4e9, 4e9] }, new Float32Array(1)])),
        operation: await code(() => gpu.run("frobnicate", [new Float32Array(1)])),
        data: await code(() => gpu.run("exp", ["text"])),
        dims: await code(() => gpu.exp({ data: new Float32Array(1), dims: [-1] })),
        param: await code(() => gpu.scale(new Float32Array(1))),
        eps: await code(() => gpu.rms_norm(new Float32Array(4), new Float32Array(4), { eps: NaN })),
        place: await code(() => engine.forced("toaster")),
        foreign: await code(() => batch.exp(17)),
        notComputed: await code(() => batch.read(batch.exp(input))),
        busy,
        large: await code(() => {
          // 10 GB, which no module of 32 bits can address.
          const batch = engine.batch();
          const column = batch.input({ data: new Float32Array(50_000), dims: [50_000, 1] });
          return batch.matmul(column, batch.input({ data: new Float32Array(50_000), dims: [1, 50_000] }));
        }),
      };
      return seen;
    });
    assert.deepEqual(codes, {
      shape: "KilnError shape", length: "KilnError length", index: "KilnError index", overflow: "KilnError overflow",
      operation: "KilnError parameter", data: "KilnError parameter", dims: "KilnError parameter", param: "KilnError parameter",
      eps: "KilnError parameter", place: "KilnError unavailable", foreign: "KilnError foreign-tensor",
      notComputed: "KilnError parameter", busy: "KilnError parameter", large: "KilnError overflow",
    });
    await leave(page);
  },

  async "without WebGPU the page says so and goes on"() {
    const page = await visit(withWebgpu, { before: () => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }) });
    assert.match(await text(page, "browser"), /not available: .*this browser has no WebGPU/);
    assert.match(await text(page, "image-caption"), /on (relaxed-simd|simd128)/);
    const rejected = await page.evaluate(() => window.kiln.Engine.create({ webgpu: "required" }).catch((error) => error.code));
    assert.equal(rejected, "unavailable");
    await leave(page);
  },

  async "the page reports a refused adapter"() {
    const page = await visit(withWebgpu, { before: () => { navigator.gpu.requestAdapter = async () => null; } });
    assert.match(await text(page, "browser"), /not available: .*offers no adapter/);
    assert.match(await text(page, "image-caption"), /on (relaxed-simd|simd128)/);
    await leave(page);
  },

  async "the page reports a refused device"() {
    const page = await visit(withWebgpu, {
      before: () => {
        GPUAdapter.prototype.requestDevice = () => Promise.reject(new DOMException("the limits are too small", "OperationError"));
      },
    });
    assert.match(await text(page, "browser"), /not available: .*opening the device failed/);
    assert.match(await text(page, "image-caption"), /on (relaxed-simd|simd128)/);
    await leave(page);
  },

  async "a GPU without memory is left alone"() {
    const page = await visit(withWebgpu, {
      kept: null,
      before: () => {
        const request = GPUAdapter.prototype.requestDevice;
        GPUAdapter.prototype.requestDevice = async function (descriptor) {
          const device = await request.call(this, descriptor);
          const [create, push, pop] = ["createBuffer", "pushErrorScope", "popErrorScope"].map((name) => device[name].bind(device));
          const scopes = [];
          // As a device does that has no memory left for anything of more than a few pixels.
          device.createBuffer = (wanted) => {
            if (wanted.size <= 1 << 16) return create(wanted);
            const scope = scopes.findLast(({ filter }) => filter === "out-of-memory");
            if (scope) scope.full = true;
            return create({ ...wanted, size: 2 ** 46, mappedAtCreation: false });
          };
          device.pushErrorScope = (filter) => {
            scopes.push({ filter, full: false });
            push(filter);
          };
          device.popErrorScope = async () => {
            const { full } = scopes.pop();
            const error = await pop();
            return full ? new GPUOutOfMemoryError("no memory is left") : error;
          };
          return device;
        };
      },
    });
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "image-caption"), /512 × 512/);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const x = new Float32Array(1 << 16).fill(2);
      const forced = await engine.forced(engine.gpu.name).add(x, x).catch(({ name, code }) => `${name} ${code}`);
      return { forced, free: (await engine.add(x, x))[9] };
    });
    assert.deepEqual(seen, { forced: "KilnError out-of-memory", free: 4 });
    await leave(page);
  },

  async "a GPU of small limits refuses what is too large for it, and the page goes on"() {
    const page = await visit(withWebgpu, {
      kept: null,
      before: () => {
        const small = { maxBufferSize: 1 << 18, maxStorageBufferBindingSize: 1 << 16 };
        const limits = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "limits").get;
        const get = (of, name) => small[name] ?? Reflect.get(of, name, of);
        Object.defineProperty(GPUAdapter.prototype, "limits", { get() { return new Proxy(limits.call(this), { get }); } });
      },
    });
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "image-caption"), /512 × 512/);
    const seen = await page.evaluate(async () => {
      const { engine } = window.kiln;
      const gpu = engine.forced(engine.gpu.name);
      const table = { data: new Float32Array(1 << 17).fill(2), dims: [1 << 12, 1 << 5] };
      const forced = await gpu.gather(table, Uint32Array.of(1)).catch(({ name, code }) => `${name} ${code}`);
      return { forced, free: (await engine.gather(table, Uint32Array.of(1)))[9], fits: [...(await gpu.exp(Float32Array.of(0)))] };
    });
    assert.deepEqual(seen, { forced: "KilnError limit", free: 2, fits: [1] });
    await leave(page);
  },

  async "a file that is not an image is reported, and the next one is drawn"() {
    const page = await visit(withWebgpu);
    await page.setInputFiles("#file", { name: "none.png", mimeType: "image/png", buffer: Buffer.from("no image") });
    await page.waitForFunction(() => document.getElementById("image-problem").textContent);
    assert.match(await text(page, "image-problem"), /none\.png is not an image/);
    const drawn = Number(await page.evaluate(() => document.body.dataset.drawn));
    // Wider than high, and larger than is drawn.
    const svg = '<svg xmlns="http://www.w3.org/2000/svg" width="1600" height="800"><rect width="800" height="800"/></svg>';
    const file = await page.evaluate(async (svg) => {
      const image = new Image();
      image.src = `data:image/svg+xml,${encodeURIComponent(svg)}`;
      await image.decode();
      const canvas = new OffscreenCanvas(1600, 800);
      canvas.getContext("2d").drawImage(image, 0, 0);
      return [...new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer())];
    }, svg);
    await page.setInputFiles("#file", { name: "half.png", mimeType: "image/png", buffer: Buffer.from(file) });
    await page.waitForFunction((drawn) => Number(document.body.dataset.drawn) > drawn, drawn);
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "image-caption"), /1024 × 512/);
    await leave(page);
  },

  async "images that arrive while one is computed are drawn after it"() {
    // The first visit measures.
    if (!profile) await leave(await visit(withWebgpu));
    // A GPU that is always chosen, and slow to give its results back.
    const slow = JSON.parse(profile);
    slow.classes = [];
    slow.places.filter(({ backend }) => backend !== "gpu").forEach(({ roofline }) => { roofline.overhead = 1e6; });
    const page = await visit(withWebgpu, {
      kept: JSON.stringify(slow),
      before: () => {
        const map = GPUBuffer.prototype.mapAsync;
        GPUBuffer.prototype.mapAsync = async function (...range) {
          await new Promise((resolve) => setTimeout(resolve, 200));
          return map.apply(this, range);
        };
      },
    });
    const gpu = await page.evaluate(() => window.kiln.engine.gpu.name);
    assert.ok((await text(page, "image-caption")).endsWith(`on ${gpu}`), await text(page, "image-caption"));
    const shade = async (colour) => Buffer.from(await page.evaluate(async (colour) => {
      const canvas = new OffscreenCanvas(512, 512);
      const context = canvas.getContext("2d");
      context.fillStyle = colour;
      context.fillRect(0, 0, 512, 512);
      return [...new Uint8Array(await (await canvas.convertToBlob()).arrayBuffer())];
    }, colour));
    const [black, white] = [await shade("black"), await shade("white")];
    await page.locator("#edges").fill("0");
    for (const buffer of [black, white]) await page.setInputFiles("#file", { name: "one.png", mimeType: "image/png", buffer });
    await page.click("#calibrate");
    await page.waitForFunction(() => {
      const canvas = document.getElementById("filtered");
      const white = canvas.getContext("2d").getImageData(256, 256, 1, 1).data[0] === 255;
      return white && !document.getElementById("calibrate").disabled;
    });
    assert.equal(await text(page, "image-problem"), "");
    assert.match(await text(page, "status"), /^Measured in/);
    await leave(page);
  },

  async "without relaxed vectors the build without them is loaded"() {
    const page = await visit(withWebgpu, {
      path: "?webgpu=off",
      // The product and sum that an engine may fuse.
      before: () => {
        const { validate } = WebAssembly;
        WebAssembly.validate = (bytes) => !String(bytes).includes("253,133,2,") && validate(bytes);
      },
    });
    assert.match(await text(page, "browser"), /yes, 128 bits \(simd128\)/);
    assert.match(await text(page, "image-caption"), /on simd128/);
    await leave(page);
  },

  async "where relaxed products and sums are rounded twice they are left alone"() {
    const page = await visit(withWebgpu, {
      path: "?webgpu=off",
      before: () => {
        const { Instance } = WebAssembly;
        WebAssembly.Instance = function (module, imports) {
          const { exports } = new Instance(module, imports);
          return { exports: exports.f ? { f: () => 0 } : exports };
        };
      },
    });
    assert.match(await text(page, "image-caption"), /on simd128/);
    await leave(page);
  },

  async "without vectors the scalar build is loaded"() {
    const page = await visit(withWebgpu, { path: "?webgpu=off", before: () => { WebAssembly.validate = () => false; } });
    assert.match(await text(page, "browser"), /no vectors, so scalar code runs/);
    assert.match(await text(page, "browser"), /not available: this build of kiln has no WebGPU/);
    assert.match(await text(page, "image-caption"), /on scalar/);
    await leave(page);
  },

  async "a model on WebGPU gives the likeliest tokens, with one readback each, one token late"() {
    const page = await visitChat({ load: null });
    // Served, but for nobody who does not come from here; the second time it is what the browser kept.
    let fetched = 0;
    await page.route("**/random.gguf", (route) => {
      if (route.request().method() === "GET") fetched += 1;
      return route.fulfill({ body: randomFile.buffer, headers: { "content-length": String(random.file.length) } });
    });
    await page.evaluate(countCalls);
    const seen = await page.evaluate(async () => {
      const { Model } = window.kiln;
      const { counted } = window;
      const options = { device: "gpu", software: true, worker: false, cache: true };
      const first = await Model.load("random.gguf", options);
      first.close();
      const cached = [];
      const model = await Model.load("random.gguf", { ...options, progress: (progress) => cached.push(progress.cached) });
      const session = await model.session();
      const next = async (most, sampling = { temperature: 0 }) => {
        const before = { ...counted };
        for await (const _ of session.generate(undefined, { maxTokens: most, ...sampling }));
        return [counted.submissions - before.submissions, counted.readbacks - before.readbacks, counted.late - before.late];
      };
      // The first token ends the prompt; the others are steps that follow each other.
      for await (const _ of session.generate("Ab", { temperature: 0, maxTokens: 2 }));
      const greedy = await next(10);
      await next(1, { seed: 1 });
      const drawn = await next(10, { seed: 1 });
      await session.truncate(18);
      await next(20);
      const { device } = model.plan;
      const { chosen } = await session.explain();
      const tokens = [...await session.tokens()];
      // Lost while a step is under way whose token is not read yet.
      await session.truncate(18);
      let taken = 0;
      const losing = async () => {
        for await (const _ of session.generate(undefined, { temperature: 0, maxTokens: 60 })) if (++taken === 3) model.destroyDevice();
      };
      const lost = await losing().then(() => "nothing", ({ code }) => code);
      model.close();
      return { tokens, greedy, drawn, same: device === chosen, device, cached: cached.at(-1), lost, taken };
    });
    assert.ok(areLikeliest(random, seen.tokens, 6), `${seen.tokens} are not the likeliest`);
    assert.equal(seen.tokens.length, 38);
    assert.match(seen.device, /swiftshader/i);
    console.log(`  ten tokens: ${seen.greedy[0]} submissions and ${seen.greedy[1]} readbacks, ${seen.greedy[2]} of them after the next submission; drawn ${seen.drawn}`);
    // A token is read while the next one is computed, but for the last, and but for one that is computed very quickly. It takes no
    // submission more, and drawn tokens no more than the likeliest ones.
    assert.equal(seen.greedy[0], seen.drawn[0]);
    assert.ok(seen.greedy[2] >= 5 && seen.drawn[2] >= 5, `${seen.greedy[2]} of 9 readbacks were late, and ${seen.drawn[2]} of drawn tokens`);
    assert.ok(seen.taken >= 3 && seen.taken < 60, `${seen.taken} tokens before the device was lost`);
    assert.deepEqual([seen.greedy[1], seen.drawn[1], seen.same, seen.cached, fetched, seen.lost], [10, 10, true, true, 1, "device-lost"]);
    await leave(page);
  },

  async "a chat is answered in a worker, stopped, and said to be what it is"() {
    const page = await visitChat();
    assert.match(await text(page, "status"), /random\.gguf is ready on .*swiftshader.*: llama, 95 thousand weights in 0\.2 MB/i);
    await page.locator("details").first().locator("summary").click();
    await page.locator("#seed").fill("5");
    await page.locator("#maxTokens").fill("16");
    const first = await send(page, "Hi");
    assert.equal(await text(page, "trouble"), "");
    assert.match(await text(page, "rate"), /^16 tokens, .* a second, on .*swiftshader/i);
    // A screen reader announces the rate once, not with every token.
    assert.equal(await page.locator("#rate").getAttribute("role"), null);
    assert.equal(await text(page, "answer-status"), await text(page, "rate"));
    assert.match(await text(page, "why"), /swiftshader is forced/i);
    assert.equal(await page.locator("#log article").count(), 2);
    // The same seed, the same answer.
    await page.click("#clear");
    assert.equal(await page.locator("#log article").count(), 0);
    assert.equal(await send(page, "Hi"), first);
    // Stopped: what was made stays.
    await page.locator("#maxTokens").fill("2048");
    await page.click("#clear");
    await page.locator("#text").fill("Go on");
    await page.evaluate(() => {
      const watcher = new MutationObserver(() => {
        if (!/^3 tokens/.test(document.getElementById("rate").textContent)) return;
        watcher.disconnect();
        document.getElementById("stop").click();
      });
      watcher.observe(document.getElementById("rate"), { childList: true });
    });
    await page.click("#send");
    await page.waitForFunction(() => /stopped/.test(document.getElementById("rate").textContent));
    assert.match(await text(page, "rate"), /^3 tokens, .*; stopped$/);
    // A file that is not a model replaces the loaded model.
    await page.setInputFiles("#file", { name: "none.gguf", mimeType: "text/plain", buffer: Buffer.from("no model at all") });
    await page.waitForFunction(() => document.body.dataset.model === "failed");
    assert.match(await text(page, "problem"), /none\.gguf was not loaded\. .*\.$/);
    assert.ok(await page.locator("#send").isDisabled());
    await leave(page);
  },

  async "a cached model is loaded after a reload of the page without the server"() {
    const page = await visitChat({ load: null });
    let reachable = true, fetched = 0;
    await page.route("**/random.gguf", (route) => {
      if (!reachable) return route.abort();
      if (route.request().method() === "GET") fetched += 1;
      return route.fulfill({ body: randomFile.buffer, headers: { "content-length": String(random.file.length) } });
    });
    const load = () => page.evaluate(async () => {
      const seen = [], model = await window.kiln.Model.load("random.gguf", { device: "cpu", cache: true, progress: ({ cached }) => seen.push(cached) });
      const session = await model.session();
      for await (const _ of session.generate("Ab", { temperature: 0, maxTokens: 5 }));
      const tokens = [...await session.tokens()];
      model.close();
      return { cached: seen.at(-1), tokens };
    });
    const first = await load();
    await page.reload();
    await page.waitForFunction(() => document.body.dataset.ready);
    reachable = false;
    const second = await load();
    assert.deepEqual([first.cached, second.cached, fetched], [false, true, 1]);
    assert.deepEqual(second.tokens, first.tokens);
    assert.ok(areLikeliest(random, second.tokens, 6), `${second.tokens} are not the likeliest`);
    // Without the cached file there is nothing to load.
    const code = await page.evaluate(async () => {
      await (await import("./models.js")).clearCache();
      return window.kiln.Model.load("random.gguf", { device: "cpu", cache: true }).then(() => "", ({ code }) => code);
    });
    assert.equal(code, "network");
    // A load that fails before the first byte leaves no file.
    reachable = true;
    const left = await page.evaluate(async () => {
      await window.kiln.Model.load("random.gguf", { device: "toaster", cache: true }).catch(() => {});
      const root = await navigator.storage.getDirectory();
      return Array.fromAsync((await root.getDirectoryHandle("kiln-models")).keys());
    });
    assert.deepEqual(left, []);
    await leave(page);
  },

  async "a file that is dropped on the page is loaded, unless it is larger than memory"() {
    const page = await visitChat({ load: null });
    await page.selectOption("#device", "cpu");
    /** Drops a file of `bytes` bytes that begins with these. */
    const drop = async (name, beginning, bytes) => {
      const data = await page.evaluateHandle(([name, text, bytes]) => {
        const beginning = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
        // The rest repeats one part, which takes no memory.
        const part = new Blob([new Uint8Array(bytes ? 1 << 24 : 0)]), rest = Math.max(0, (bytes ?? 0) - beginning.length);
        const file = new File([beginning, ...Array(Math.floor(rest / (1 << 24))).fill(part), part.slice(0, rest % (1 << 24))], name);
        const data = new DataTransfer();
        data.items.add(file);
        return data;
      }, [name, Buffer.from(beginning).toString("base64"), bytes]);
      await page.dispatchEvent("#drop", "dragenter", { dataTransfer: data });
      assert.ok(await page.locator("#drop.over").count(), "the page shows where to drop");
      await page.dispatchEvent("#drop", "drop", { dataTransfer: data });
      await page.waitForFunction(() => document.body.dataset.model);
      assert.equal(await page.locator("#drop.over").count(), 0);
    };
    await drop("dropped.gguf", harmonyModel());
    assert.match(await text(page, "status"), /dropped\.gguf is ready on simd128/);
    // A model that thinks: the page shows it apart from the answer.
    await page.locator("#text").fill("Well?");
    await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.body.dataset.answered);
    assert.deepEqual(await page.locator("#log .model p").allTextContents(), ["hmm", "Yes"]);
    const large = largeModel(2_750_000);
    await page.evaluate(() => delete document.body.dataset.model);
    await drop("large.gguf", large.beginning, large.bytes);
    assert.match(await text(page, "problem"), /large\.gguf was not loaded\. The model needs .* GB for its weights .* use a smaller model/);
    await leave(page);
  },

  async "without WebGPU a chat runs on the processor and says so"() {
    const page = await visitChat({ device: null, before: () => Object.defineProperty(Navigator.prototype, "gpu", { get: () => undefined }) });
    assert.match(await text(page, "gpu"), /no WebGPU/);
    await page.setInputFiles("#file", { name: "plain.gguf", mimeType: "text/plain", buffer: Buffer.from(randomModel({ template: "" }).file) });
    await page.waitForFunction(() => /plain.gguf is ready/.test(document.getElementById("status").textContent));
    await page.locator("summary").first().click();
    await page.locator("#seed").fill("5");
    await page.locator("#maxTokens").fill("16");
    const first = await send(page, "Once");
    assert.match(await text(page, "status"), /no chat template, so it continues/);
    assert.equal(await text(page, "trouble"), "");
    // A new conversation does not continue the text, nor that of a message whose answer failed.
    await page.click("#clear");
    await page.evaluate(async () => {
      const { prototype } = (await import("./models.js")).Session, { generate } = prototype;
      prototype.generate = async function* (text) {
        prototype.generate = generate;
        for await (const _ of generate.call(this, text, { maxTokens: 1 }));
        throw new Error("this answer fails");
      };
    });
    await send(page, "Twice");
    assert.equal(await text(page, "trouble"), "This answer fails.");
    // An answer ends although nothing explains where it was computed.
    await page.evaluate(async () => {
      (await import("./models.js")).Session.prototype.explain = () => Promise.reject(new Error("the model is closed"));
    });
    assert.equal(await send(page, "Once"), first);
    assert.equal(await text(page, "trouble"), "The model is closed.");
    await leave(page);
  },

  async "a load that ends between its weights and its session closes the model"() {
    const page = await visitChat({ load: null });
    await page.selectOption("#device", "cpu");
    await page.evaluate(() => {
      const { prototype } = window.kiln.Model, { session, close } = prototype;
      window.closings = 0;
      prototype.close = function () {
        closings += 1;
        close.call(this);
      };
      prototype.session = function () {
        if (closings) return Promise.reject(new Error("no session"));
        document.getElementById("cancel").click();
        return session.call(this);
      };
    });
    for (const [closings, problem] of [[1, ""], [2, "random.gguf was not loaded. No session."]]) {
      await page.evaluate(() => delete document.body.dataset.model);
      await page.setInputFiles("#file", randomFile);
      await page.waitForFunction(() => document.body.dataset.model === "failed");
      assert.deepEqual([await page.evaluate(() => window.closings), await text(page, "problem")], [closings, problem]);
      assert.ok(await page.locator("#send").isDisabled());
    }
    await leave(page);
  },

  async "two sessions of a model generate at once"() {
    const page = await visitChat({ load: null });
    await page.route("**/random.gguf", (route) => route.fulfill({ body: randomFile.buffer }));
    const counts = await page.evaluate(async () => {
      const model = await window.kiln.Model.load("random.gguf", { device: "cpu" });
      const count = async () => {
        const session = await model.session();
        let made = 0;
        for await (const _ of session.generate("Ab", { temperature: 0, maxTokens: 20 })) made += 1;
        return made;
      };
      return Promise.all([count(), count()]);
    });
    assert.deepEqual(counts, [20, 20]);
    await leave(page);
  },

  async "a module that did not arrive is fetched again"() {
    const page = await visitChat({ load: null });
    let reachable = false;
    await page.route("**/kiln_web_bg.wasm", (route) => (reachable ? route.continue() : route.abort()));
    await page.route("**/random.gguf", (route) => route.fulfill({ body: randomFile.buffer }));
    const load = () => page.evaluate(async () => {
      const { Engine } = await import("./kiln.js");
      const loads = [Engine.create({ webgpu: false }), window.kiln.Model.load("random.gguf", { device: "cpu", worker: false })];
      return (await Promise.allSettled(loads)).map(({ status }) => status);
    });
    assert.deepEqual(await load(), ["rejected", "rejected"]);
    reachable = true;
    assert.deepEqual(await load(), ["fulfilled", "fulfilled"]);
    await leave(page);
  },

  async "keyboard and screen reader find everything"() {
    const page = await visit(withWebgpu);
    const reached = [];
    for (let i = 0; i < 14; i++) {
      await page.keyboard.press("Tab");
      reached.push(await page.evaluate(() => document.activeElement.id || document.activeElement.className || document.activeElement.tagName));
    }
    for (const id of ["skip", "calibrate", "bench-operation", "bench-run", "file", "blur", "edges", "verify-run"]) {
      assert.ok(reached.includes(id), `${id} among ${reached}`);
    }
    await page.locator("#blur").focus();
    await page.keyboard.press("End");
    assert.equal(await page.locator("#blur").getAttribute("aria-valuetext"), "6.0 px");
    const unnamed = await page.evaluate(() => [...document.querySelectorAll("button, input, select, canvas, progress, [role=region]")]
      .filter((element) => !(element.labels?.length || element.getAttribute("aria-label") || element.textContent.trim()))
      .map((element) => element.outerHTML));
    assert.deepEqual(unnamed, []);
    await leave(page);
  },

  async "keyboard and screen reader find the chat, wide and narrow"() {
    for (const [name, width, colorScheme] of [["chat-wide-light", 1280, "light"], ["chat-narrow-dark", 360, "dark"]]) {
      const page = await visitChat({ device: "cpu", viewport: { width, height: 800 }, colorScheme });
      // The model has a page as soon as it is ready: the message is where one writes.
      assert.equal(await page.evaluate(() => document.activeElement.id), "text");
      for (const summary of await page.locator("summary").all()) await summary.click();
      await page.locator("#maxTokens").fill("48");
      await page.locator("#text").fill("What is a kiln?");
      await page.locator("#text").press("Enter");
      await page.waitForFunction(() => document.body.dataset.answered);
      assert.equal(await page.locator("#log").getAttribute("aria-busy"), "false");
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(over, 0, `${name} scrolls sideways`);
      const unnamed = await page.evaluate(() => [...document.querySelectorAll("button, input, select, textarea, progress, [role=region], [role=log]")]
        .filter((element) => !(element.hidden || element.labels?.length || element.getAttribute("aria-label") || element.getAttribute("aria-labelledby") || element.textContent.trim()))
        .map((element) => element.outerHTML));
      assert.deepEqual(unnamed, []);
      await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
      await leave(page);
    }
  },

  async "the page fits wide and narrow, light and dark"() {
    for (const [name, width, colorScheme] of [["wide-light", 1280, "light"], ["wide-dark", 1280, "dark"], ["narrow-light", 360, "light"], ["narrow-dark", 360, "dark"]]) {
      const page = await visit(withWebgpu, { viewport: { width, height: 800 }, colorScheme });
      const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(over, 0, `${name} scrolls sideways`);
      await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
      await leave(page);
    }
  },
};

// Real models, where they are there: weights that no test may bring along.
if (process.env.KILN_WEB_MODEL) {
  tests["SmolLM2 gives the tokens of exact arithmetic"] = async () => {
    // Those of crates/kiln-llm/tests/smollm2.rs.
    const expected = [7042, 30, 198, 198, 504, 2988, 314, 42];
    const page = await visitChat({ load: null });
    await page.setInputFiles("#file", process.env.KILN_WEB_MODEL);
    await page.waitForFunction(() => document.body.dataset.model);
    const devices = [["cpu", expected.length]];
    // A token takes ten seconds and more on WebGPU in software: one ends the prompt, and one follows it.
    if (process.env.KILN_STORIES) devices.push(["gpu", 2]);
    for (const [device, most] of devices) {
      const tokens = await page.evaluate(async ([device, most]) => {
        const model = await window.kiln.Model.load(document.getElementById("file").files[0], { device, software: true });
        const session = await model.session({ context: 64 });
        const tokens = [];
        for await (const { token } of session.generate("The capital of France is", { temperature: 0, maxTokens: most })) tokens.push(token);
        model.close();
        return tokens;
      }, [device, most]);
      assert.deepEqual(tokens, expected.slice(0, most), device);
    }
    await leave(page);
  };
}
if (process.env.KILN_STORIES) {
  tests["stories260K gives its 257 tokens on WebGPU and on simd128"] = async () => {
    const folder = process.env.KILN_STORIES;
    const expected = JSON.parse(await readFile(join(folder, "greedy_tokens.json"), "utf8"));
    const page = await visitChat({ load: { name: "stories260K.gguf", mimeType: "application/octet-stream", buffer: await readFile(join(folder, "stories260K-f32.gguf")) } });
    for (const device of ["cpu", "gpu"]) {
      const tokens = await page.evaluate(async ([device, most]) => {
        const model = await window.kiln.Model.load(document.getElementById("file").files[0], { device, software: true });
        const session = await model.session();
        for await (const _ of session.generate("", { temperature: 0, maxTokens: most }));
        const tokens = [...await session.tokens()];
        model.close();
        return tokens;
      }, [device, expected.length - 1]);
      assert.deepEqual(tokens, expected, device);
    }
    await leave(page);
  };
}

let failed = 0;
for (const [name, test] of Object.entries(tests).filter(([name]) => !only || name.includes(only))) {
  const start = performance.now();
  try {
    await Promise.race([test(), new Promise((_, reject) => setTimeout(reject, MOST, new Error("it does not end")).unref())]);
    console.log(`ok    ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`WRONG ${name}\n${error.stack}`);
  }
}
await withWebgpu.close();
console.log(failed ? `${failed} failed` : "all passed");
process.exit(failed ? 1 : 0);
