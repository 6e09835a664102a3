// kiln for JavaScript. A tensor is { data, dims }, or a typed array, which is a vector.
//
// Every operation is a method of `Engine`, which returns a promise of its result, and of `Batch`, which records it. The
// methods are generated from the list of operations in the module, which its Rust tables define.

// A module with one function that uses a vector. Browsers that can run the build with vectors accept it as valid.
const VECTORS = Uint8Array.of(0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 123, 3, 2, 1, 0, 10, 8, 1, 6, 0, 65, 0, 253, 15, 11);

// A module whose function returns 1 if relaxed instructions behave as the build with them requires: (1 + 2^-12)² - (1 + 2^-11)
// is not 0, because it is rounded once, and four products of -2 and 3 are -24, which early versions of browsers computed wrongly.
const RELAXED = Uint8Array.of(
  0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7, 5, 1, 1, 102, 0, 0, 10, 52, 1, 50, 0,
  67, 0, 8, 128, 63, 253, 19, 67, 0, 8, 128, 63, 253, 19, 67, 0, 16, 128, 191, 253, 19, 253, 133, 2, 253, 83,
  65, 126, 253, 15, 65, 3, 253, 15, 65, 0, 253, 17, 253, 147, 2, 253, 27, 0, 65, 104, 70, 113, 11,
);

/** Whether this browser has SIMD in WebAssembly. */
export const hasVectors = WebAssembly.validate(VECTORS);

const hasRelaxed = () => hasVectors && WebAssembly.validate(RELAXED) &&
  new WebAssembly.Instance(new WebAssembly.Module(RELAXED)).exports.f() === 1;

/** The build that this browser loads: with fused multiply-add, with vectors only, or with neither. */
export const build = hasRelaxed() ? "relaxed-simd" : hasVectors ? "simd128" : "scalar";

let loading;

/** Loads the module. */
function load() {
  loading ??= (async () => {
    const module = await import(`./${build}/kiln_web.js`);
    await module.default();
    for (const { name, reduces, beside } of module.operations()) {
      Engine.prototype[name] = async function (...given) {
        const [tensors, params] = split(given, beside);
        const results = await this.run(name, tensors, params);
        if (results.length > 1) return results.map((result) => result.data);
        return reduces && params?.axis === undefined ? results[0].data[0] : results[0].data;
      };
      Batch.prototype[name] = function (...given) {
        const [tensors, params] = split(given, beside);
        const results = this.record(name, tensors, params);
        return results.length > 1 ? results : results[0];
      };
    }
    return module;
  })().catch((error) => {
    // The next call tries again.
    loading = undefined;
    throw error;
  });
  return loading;
}

/** Whether a value is a tensor, of the host or of a batch. Any other last argument has the parameters. */
const isTensor = (value) => typeof value === "number" || ArrayBuffer.isView(value) || value?.data !== undefined;

/** The tensors and the parameters of a call. Parameters that are tensors (`beside`) follow the others. */
function split(given, beside) {
  const last = given.at(-1);
  if (given.length === 0 || isTensor(last)) return [given, undefined];
  const named = beside.filter((name) => last?.[name] !== undefined).map((name) => last[name]);
  return [[...given.slice(0, -1), ...named], last];
}

/** The parameters of the slices that consecutive parts of these lengths are; they must fill the dimension. */
function parts(dims, { axis, lengths } = {}) {
  const fills = Array.isArray(lengths) && lengths.length > 0 && lengths.reduce((a, b) => a + b) === dims[axis];
  if (!fills || !lengths.every((length) => Number.isInteger(length) && length >= 0)) {
    const message = `split into parts of [${lengths}] along dimension ${axis} of [${[...dims]}]: lengths must fill the dimension`;
    throw Object.assign(new Error(message), { name: "KilnError", code: "view" });
  }
  let end = 0;
  return lengths.map((length) => ({ axis, start: end, end: end += length }));
}

/** Runs operations where they are predicted to run fastest. */
export class Engine {
  #raw;
  #places;

  constructor(raw, places) {
    this.#raw = raw;
    this.#places = places;
  }

  /**
   * Makes an engine. Without WebGPU it uses the CPU only, and `problem` says why; with `webgpu: "required"` the promise is
   * rejected instead.
   */
  static async create(options = {}) {
    const module = await load();
    const raw = await module.Engine.create(options);
    return new Engine(raw, await raw.places());
  }

  /** The placements on which operations can run: { name, backend, software }. */
  get places() {
    return this.#places;
  }

  /** The placement that is a GPU, or undefined. */
  get gpu() {
    return this.#places.find((place) => place.backend === "gpu");
  }

  /** Why the engine has no GPU; undefined if it has one or was made with `webgpu: false`. */
  get problem() {
    return this.#raw.problem();
  }

  /** Whether the engine decides by a measured profile or by built-in constants, and why. */
  get profileStatus() {
    return this.#raw.profile_status();
  }

  /** Measures the machine for some seconds, uses the profile from then on, and returns it as text for the next visit. */
  calibrate({ seconds = 1 } = {}) {
    return this.#raw.calibrate(seconds);
  }

  /** Returns an engine that runs everything on the placement with this name. */
  forced(place) {
    return new Engine(this.#raw.forced(place), this.#places);
  }

  /** Where an operation on operands with these extents would run, and why. */
  explain(operation, inputs, params) {
    return this.#raw.explain(operation, inputs, params);
  }

  /** Runs an operation by its name. Returns a promise of an array with { data, dims } for each result. */
  run(operation, inputs, params) {
    return this.#raw.run(operation, inputs, params);
  }

  /** Splits a tensor along dimension `axis` into consecutive parts of these lengths, which must fill the dimension. */
  async split(x, params) {
    return Promise.all(parts(x.dims ?? [x.length], params).map((part) => this.slice(x, part)));
  }

  /** Where the elements along dimension `axis` are from in sorted order: the indices that `sort` gives. */
  async argsort(x, params) {
    return (await this.sort(x, params))[1];
  }

  /** An empty batch. */
  batch() {
    return new Batch(this.#raw.batch());
  }

  /** Compares every `step`-th of the cases of an operation with at most this many elements with the f64 reference. */
  verify(operation, place, elements = 5000, step = 1) {
    return this.#raw.verify(operation, place, elements, step);
  }

  /** Destroys the device of the GPU, to test how a program reacts to a lost device. */
  destroyDevice() {
    return this.#raw.destroy_device();
  }
}

/** Operations that are recorded first and run together. */
export class Batch {
  #raw;
  /** Resolves after the last read; reads follow one another. */
  #reads = Promise.resolve();

  constructor(raw) {
    this.#raw = raw;
  }

  /** Copies a tensor into the batch. */
  input(tensor) {
    return this.#raw.input(tensor);
  }

  /** Replaces the elements of an input for the next execution. */
  set(tensor, data) {
    this.#raw.set(tensor, data);
  }

  /** Records an operation by its name. Returns an array of its results. */
  record(operation, inputs, params) {
    return this.#raw.record(operation, inputs, params);
  }

  /** The extents of a tensor. */
  dims(tensor) {
    return this.#raw.dims(tensor);
  }

  /** Splits a tensor along dimension `axis` into consecutive parts of these lengths, which must fill the dimension. */
  split(x, params) {
    return parts(this.dims(x), params).map((part) => this.slice(x, part));
  }

  /** Where the elements along dimension `axis` are from in sorted order: the indices that `sort` gives. */
  argsort(x, params) {
    return this.sort(x, params)[1];
  }

  /** Where these tensors would be computed, and why. */
  explain(wanted) {
    return this.#raw.explain(wanted);
  }

  /** Computes these tensors. */
  execute(wanted) {
    return this.#raw.execute(wanted);
  }

  /** Computes these tensors and reads them, on a GPU in one submission. Returns an array of their elements. */
  run(wanted) {
    return this.#raw.run(wanted);
  }

  /** The elements of an input, or of a tensor that the last execution computed. */
  read(tensor) {
    const next = this.#reads.then(() => this.#raw.read(tensor));
    this.#reads = next.catch(() => {});
    return next;
  }
}

/** The names of the operations that `verify` accepts. */
export async function verifiable() {
  return (await load()).verifiable();
}

/** Every operation: { name, operands, beside, params, reduces }. */
export async function operations() {
  return (await load()).operations();
}
