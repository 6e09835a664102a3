// The page: the devices of the browser, times of operations, an image filter, and every operation against the reference.

import { Engine, build } from "./kiln.js";
import { bench } from "./bench.js";
import { imageFilter } from "./image-filter.js";
import { sentence } from "./text.js";
import { verification } from "./verification.js";

const STORED = "kiln-profile";
const SIMD = {
  "relaxed-simd": "yes, 128 bits, with fused multiply-add (relaxed-simd)",
  simd128: "yes, 128 bits (simd128)",
  scalar: "not available: this browser's WebAssembly has no vectors, so scalar code runs",
};
const $ = (id) => document.getElementById(id);

function show(text, problem = false) {
  $("status").textContent = text;
  $("status").classList.toggle("problem", problem);
}

// Storage may be switched off: the page then measures each time.
function stored() {
  try { return localStorage.getItem(STORED) ?? undefined; } catch { return undefined; }
}

function store(profile) {
  try { localStorage.setItem(STORED, profile); } catch { /* Storage is switched off. */ }
}

function describe(engine) {
  const gpu = engine.gpu;
  const rows = [
    ["WebGPU", gpu ? gpu.name + (gpu.software ? " (software: the CPU emulates a GPU)" : "") : `not available: ${engine.problem ?? "this page was opened with webgpu=off"}`, !gpu],
    ["SIMD", SIMD[build], build === "scalar"],
    ["Placements", engine.places.map((place) => place.name).join(", ")],
    ["Profile", engine.profileStatus],
  ];
  $("browser").replaceChildren(...rows.flatMap(([term, text, problem]) => {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = term;
    dd.textContent = text;
    dd.classList.toggle("problem", Boolean(problem));
    return [dt, dd];
  }));
}

async function calibrate(engine) {
  show("Measuring this machine for a second …");
  const start = performance.now();
  store(await engine.calibrate({ seconds: 1 }));
  describe(engine);
  show(`Measured in ${((performance.now() - start) / 1000).toFixed(1)} s. Everything is ready.`);
}

async function start() {
  const asked = new URLSearchParams(location.search);
  // The page also lists software adapters; the router decides about them after they are measured.
  const engine = await Engine.create({ profile: stored(), software: true, webgpu: asked.get("webgpu") !== "off" });
  describe(engine);
  if (!/measured/.test(engine.profileStatus) || /until/.test(engine.profileStatus)) {
    await calibrate(engine);
  } else {
    show("Everything is ready.");
  }
  const parts = [bench(engine), await imageFilter(engine), verification(engine)];
  $("calibrate").addEventListener("click", async () => {
    $("calibrate").disabled = true;
    try {
      await calibrate(engine);
      parts.forEach((part) => part?.calibrated?.());
    } catch (error) {
      show(`Measuring failed: ${sentence(error)}`, true);
    }
    $("calibrate").disabled = false;
  });
  $("calibrate").disabled = false;
  // For the console of the browser, and for the tests.
  window.kiln = { engine, Engine };
  document.body.dataset.ready = "true";
}

start().catch((error) => {
  console.error(error);
  show(`kiln could not start: ${sentence(error)}`, true);
  document.body.dataset.ready = "failed";
});
