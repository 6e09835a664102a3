// Measures calls on each placement, and plots the times with the size from which the router chooses the GPU.

import { duration, sentence } from "./text.js";

const $ = (id) => document.getElementById(id);

const powers = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => 2 ** (from + i));

const values = (n) => Float32Array.from({ length: n }, (_, i) => ((i * 2654435761) % 1000) / 1000 - 0.5);

const OPERATIONS = {
  matmul: {
    sizes: [16, 32, 64, 96, 128, 192, 256, 384, 512],
    dims: (n) => [[n, n], [n, n]],
    axis: "n, of n × n",
  },
  sum: { sizes: powers(8, 21), dims: (n) => [[n]], axis: "elements" },
  gelu: { sizes: powers(8, 20), dims: (n) => [[n]], axis: "elements" },
};

/** A placement that takes longer than this for one call, in milliseconds, is not measured at larger sizes. */
const LONG = 400;

const count = (n) => (n >= 2 ** 20 && n % 2 ** 20 === 0 ? `${n / 2 ** 20} Mi` : n >= 1024 && n % 1024 === 0 ? `${n / 1024} Ki` : String(n));

/** Milliseconds of one call: the least of a few samples, each longer than a tick of the clock. */
async function time(call) {
  const once = async (repeats) => {
    const start = performance.now();
    for (let i = 0; i < repeats; i++) await call();
    return (performance.now() - start) / repeats;
  };
  // The first call compiles kernels.
  await call();
  const first = await once(1);
  if (first > 50) return first;
  const repeats = Math.max(2, Math.ceil(4 / Math.max(first, 0.005)));
  let least = Infinity;
  for (let i = 0; i < 3; i++) least = Math.min(least, await once(repeats));
  return least;
}

function chart(operation, series, crossover) {
  const [width, height, left, right, top, bottom] = [640, 340, 64, 150, 24, 46];
  const { sizes, axis } = OPERATIONS[operation];
  const times = series.flatMap(({ points }) => points.map(([, ms]) => ms)).filter(Boolean);
  if (times.length === 0) return;
  const [low, high] = [Math.floor(Math.log10(Math.min(...times))), Math.ceil(Math.log10(Math.max(...times)) + 1e-9)];
  const span = (n) => Math.log2(n / sizes[0]) / Math.log2(sizes.at(-1) / sizes[0]);
  const x = (n) => left + span(n) * (width - left - right);
  const y = (ms) => height - bottom - ((Math.log10(ms) - low) / Math.max(high - low, 1)) * (height - top - bottom);
  const grid = [];
  for (let power = low; power <= high; power++) {
    grid.push(`<path class="axis" d="M${left} ${y(10 ** power)}H${width - right}"/>`,
      `<text x="${left - 8}" y="${y(10 ** power) + 4}" text-anchor="end">${duration(10 ** power)}</text>`);
  }
  const marks = sizes.filter((n, i) => i === 0 || i === sizes.length - 1 || (i % 3 === 0 && i < sizes.length - 2));
  for (const n of marks) grid.push(`<text x="${x(n)}" y="${height - bottom + 20}" text-anchor="middle">${count(n)}</text>`);
  grid.push(`<text x="${(left + width - right) / 2}" y="${height - 6}" text-anchor="middle">${axis}</text>`);
  // Labels at the ends of the lines, moved apart so that they do not overlap.
  const ends = series.filter(({ points }) => points.length > 0).map(({ name, kind, points }) => {
    const [n, ms] = points.at(-1);
    return { name, kind, x: x(n), y: y(ms) };
  }).sort((a, b) => a.y - b.y);
  ends.forEach((end, i) => { if (i > 0) end.y = Math.max(end.y, ends[i - 1].y + 15); });
  const lines = series.map(({ kind, points }) => {
    const path = points.map(([n, ms], i) => `${i ? "L" : "M"}${x(n).toFixed(1)} ${y(ms).toFixed(1)}`).join("");
    const dots = points.map(([n, ms]) => `<circle class="${kind}" cx="${x(n).toFixed(1)}" cy="${y(ms).toFixed(1)}" r="3.5"/>`);
    return `<path class="${kind}" d="${path}"/>${dots.join("")}`;
  });
  const labels = ends.map(({ name, kind, x, y }) => `<text class="${kind}" x="${x + 8}" y="${y + 4}">${name}</text>`);
  const crossing = crossover === undefined ? "" :
    `<path class="crossover" d="M${x(crossover)} ${top}V${height - bottom}"/>` +
    `<text class="crossing" x="${x(crossover)}" y="${top - 8}" text-anchor="middle">kiln chooses the GPU from here on</text>`;
  $("chart").innerHTML = `<svg viewBox="0 0 ${width} ${height}" role="img" aria-label="Time against size for each placement; the table below has the numbers">${grid.join("")}${crossing}${lines.join("")}${labels.join("")}</svg>`;
}

const NAMES = { scalar: "scalar", simd: "SIMD", gpu: "WebGPU" };

function table(operation, series, choices) {
  const { sizes, axis } = OPERATIONS[operation];
  const head = document.createElement("tr");
  const cell = (tag, text, number = true) => {
    const element = document.createElement(tag);
    element.textContent = text;
    if (tag === "th") element.scope = "col";
    element.classList.toggle("number", number);
    return element;
  };
  head.append(cell("th", axis), ...series.map(({ name }) => cell("th", name)), cell("th", "kiln chooses", false));
  const rows = sizes.map((n) => {
    const row = document.createElement("tr");
    const size = cell("th", String(n));
    size.scope = "row";
    const times = series.map(({ points }) => cell("td", duration(points.find(([size]) => size === n)?.[1])));
    row.append(size, ...times, cell("td", choices.get(n) ?? "", false));
    return row;
  });
  $("bench-table").caption.textContent = `Time of one call of ${operation}`;
  $("bench-table").tHead.replaceChildren(head);
  $("bench-table").tBodies[0].replaceChildren(...rows);
}

export function bench(engine) {
  const button = $("bench-run");

  async function run() {
    const operation = $("bench-operation").value;
    const { sizes, dims } = OPERATIONS[operation];
    const kind = (place) => place.backend;
    const name = (place) => (place.backend === "gpu" && place.software ? "WebGPU (software)" : NAMES[place.backend]);
    const series = engine.places.map((place) => ({ name: name(place), kind: kind(place), engine: engine.forced(place.name), points: [], ended: false }));
    const choices = new Map();
    $("bench-status").textContent = `Measuring ${operation} …`;
    let crossover;
    for (const n of sizes) {
      const chosen = engine.explain(operation, dims(n)).chosen;
      choices.set(n, chosen);
      if (chosen === engine.gpu?.name) crossover ??= n;
      else crossover = undefined;
    }
    for (const n of sizes) {
      const tensors = dims(n).map((dims) => ({ data: values(dims.reduce((a, b) => a * b, 1)), dims }));
      for (const line of series.filter(({ ended }) => !ended)) {
        $("bench-caption").textContent = `Measuring ${operation} of ${n} on ${line.name} …`;
        const ms = await time(() => line.engine.run(operation, tensors));
        line.points.push([n, Math.max(ms, 1e-4)]);
        line.ended = ms > LONG;
        chart(operation, series, crossover);
        table(operation, series, choices);
        await new Promise((resolve) => setTimeout(resolve));
      }
    }
    const places = [...new Set(choices.values())];
    const faster = sizes.filter((n) => {
      const at = series.map(({ points, kind }) => ({ kind, ms: points.find(([size]) => size === n)?.[1] ?? Infinity }));
      return at.reduce((a, b) => (b.ms < a.ms ? b : a)).kind === "gpu";
    });
    $("bench-caption").textContent = !engine.gpu
      ? "This browser has no WebGPU to compare with: everything runs on the CPU."
      : places.length === 1
        ? `The router chooses ${places[0]} for all of these sizes.`
        : `${crossover ? `The router chooses WebGPU from size ${crossover} on` : "The choice of the router changes at several sizes"}. In this measurement WebGPU was ${faster.length ? `faster from size ${faster[0]} on` : "not faster at any of these sizes"}.`;
    // A screen reader announces the status once; the caption changes with every size.
    $("bench-status").textContent = $("bench-caption").textContent;
    document.body.dataset.bench = operation;
  }

  button.addEventListener("click", async () => {
    button.disabled = true;
    delete document.body.dataset.bench;
    try {
      await run();
    } catch (error) {
      $("bench-caption").textContent = $("bench-status").textContent = `Measuring failed: ${sentence(error)}`;
    }
    button.disabled = false;
  });
  button.disabled = false;
  return {};
}
