// An image, blurred and with its edges: a batch that is recorded once for each size and runs whenever a slider moves.

import { duration, sentence } from "./text.js";

const $ = (id) => document.getElementById(id);

/** Weights of the blur on each side of the middle one. */
const RADIUS = 12;
/** The longer side of an image; larger images are scaled down first. */
const MOST_PIXELS = 1024;
const SOBEL = Float32Array.of(-1, 0, 1, -2, 0, 2, -1, 0, 1);
const SOBEL_DOWN = Float32Array.of(-1, -2, -1, 0, 0, 0, 1, 2, 1);

/** Weights of a Gaussian; a deviation of 0 leaves the image as it is. */
function gaussian(deviation) {
  const weights = Float32Array.from({ length: 2 * RADIUS + 1 }, (_, i) => {
    const distance = i - RADIUS;
    return deviation < 0.05 ? Number(distance === 0) : Math.exp(-(distance ** 2) / (2 * deviation ** 2));
  });
  const sum = weights.reduce((a, b) => a + b, 0);
  return weights.map((weight) => weight / sum);
}

function record(engine, width, height) {
  const batch = engine.batch();
  const input = batch.input({ data: new Float32Array(width * height), dims: [height, width] });
  const across = batch.input({ data: gaussian(1), dims: [1, 2 * RADIUS + 1] });
  const down = batch.input({ data: gaussian(1), dims: [2 * RADIUS + 1, 1] });
  const share = batch.input({ data: Float32Array.of(0.5), dims: [] });
  const rest = batch.input({ data: Float32Array.of(0.5), dims: [] });
  const same = { padding: "same" };
  const blurred = batch.convolve2d(batch.convolve2d(input, across, same), down, same);
  const dx = batch.convolve2d(blurred, batch.input({ data: SOBEL, dims: [3, 3] }), same);
  const dy = batch.convolve2d(blurred, batch.input({ data: SOBEL_DOWN, dims: [3, 3] }), same);
  const length = batch.sqrt(batch.fma(dy, dy, batch.mul(dx, dx)));
  const mixed = batch.fma(length, share, batch.mul(blurred, rest));
  const result = batch.clip(mixed, { lo: 0, hi: 1 });
  return { batch, input, across, down, share, rest, result, width, height };
}

function luminance({ data }) {
  return Float32Array.from({ length: data.length / 4 }, (_, i) => (0.2126 * data[4 * i] + 0.7152 * data[4 * i + 1] + 0.0722 * data[4 * i + 2]) / 255);
}

export async function imageFilter(engine) {
  const [original, filtered] = [$("original"), $("filtered")];
  // The image, and the batch for its size, which has a copy of the image once it has run.
  let [shades, filter] = [undefined, undefined];
  let [running, again] = [false, false];

  function explain() {
    const { chosen, why, unsure, predictions } = filter.batch.explain([filter.result]);
    $("image-why").textContent = `${why}${unsure ? " (unsure: another placement takes almost as long)" : ""}.`;
    const rows = predictions.map(({ place, seconds }) => {
      const row = document.createElement("tr");
      row.classList.toggle("chosen", place === chosen);
      const [name, time] = [document.createElement("th"), document.createElement("td")];
      name.scope = "row";
      name.textContent = place === chosen ? `→ ${place}` : place;
      time.textContent = duration(1000 * seconds);
      time.className = "number";
      row.append(name, time);
      return row;
    });
    $("image-places").tBodies[0].replaceChildren(...rows);
    return chosen;
  }

  async function draw() {
    const [deviation, share] = [Number($("blur").value), Number($("edges").value)];
    for (const [id, value] of [["blur", `${deviation.toFixed(1)} px`], ["edges", `${Math.round(100 * share)} %`]]) {
      $(`${id}-value`).textContent = value;
      $(id).setAttribute("aria-valuetext", value);
    }
    if (!filter) return;
    // If sliders move while an image is computed, it is computed once more after that.
    if (running) { again = true; return; }
    running = true;
    try {
      do {
        again = false;
        const { batch, input, across, down, share: edges, rest, result, width, height } = filter;
        const start = performance.now();
        // Inputs of a running batch cannot change, so they are set only here: an image that arrives meanwhile is drawn afterwards.
        if (filter.holds !== shades) {
          batch.set(input, shades);
          filter.holds = shades;
        }
        const weights = gaussian(Number($("blur").value));
        batch.set(across, weights);
        batch.set(down, weights);
        const amount = Number($("edges").value);
        batch.set(edges, Float32Array.of(amount));
        batch.set(rest, Float32Array.of(1 - amount));
        const [results] = await batch.run([result]);
        const took = performance.now() - start;
        const image = new ImageData(width, height);
        const pixels = new Uint32Array(image.data.buffer);
        for (let i = 0; i < results.length; i++) {
          const shade = Math.round(255 * results[i]);
          pixels[i] = 0xff000000 | (shade << 16) | (shade << 8) | shade;
        }
        filtered.getContext("2d").putImageData(image, 0, 0);
        $("image-caption").textContent = `${width} × ${height}, in ${duration(took)}, on ${explain()}`;
        document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? 0) + 1);
      } while (again);
    } catch (error) {
      $("image-problem").textContent = `The image could not be computed: ${sentence(error)}`;
    }
    running = false;
  }

  async function show(source) {
    let bitmap;
    try {
      bitmap = await createImageBitmap(source);
    } catch {
      $("image-problem").textContent = `${source.name ?? "This"} is not an image that this browser can read.`;
      return;
    }
    try {
      $("image-problem").textContent = "";
      const scale = Math.min(1, MOST_PIXELS / Math.max(bitmap.width, bitmap.height));
      const [width, height] = [bitmap.width, bitmap.height].map((extent) => Math.max(1, Math.round(scale * extent)));
      for (const canvas of [original, filtered]) [canvas.width, canvas.height] = [width, height];
      const context = original.getContext("2d", { willReadFrequently: true });
      context.drawImage(bitmap, 0, 0, width, height);
      if (filter?.width !== width || filter?.height !== height) filter = record(engine, width, height);
      shades = luminance(context.getImageData(0, 0, width, height));
      await draw();
    } catch (error) {
      $("image-problem").textContent = `The image could not be computed: ${sentence(error)}`;
    }
  }

  $("file").addEventListener("change", () => { if ($("file").files[0]) show($("file").files[0]); });
  const area = $("drop");
  area.addEventListener("dragover", (event) => { event.preventDefault(); area.classList.add("over"); });
  area.addEventListener("dragleave", () => area.classList.remove("over"));
  area.addEventListener("drop", (event) => {
    event.preventDefault();
    area.classList.remove("over");
    const file = event.dataTransfer.files[0];
    if (file) show(file);
    else $("image-problem").textContent = "Drop an image file here: this was not a file.";
  });
  for (const slider of [$("blur"), $("edges")]) slider.addEventListener("input", draw);
  for (const id of ["file", "blur", "edges"]) $(id).disabled = false;

  const response = await fetch("astronaut.png");
  await show(await response.blob());

  return {
    calibrated() {
      // A batch keeps the profile that it was recorded with, so it is recorded again.
      if (!filter) return;
      filter = record(engine, filter.width, filter.height);
      draw();
    },
  };
}
