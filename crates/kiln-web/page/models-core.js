// Runs in the thread of a model: reads the file, and answers the requests of models.js.

/** Bytes that the module gets at once: after the plan of the model is known, and before. */
const PART = 4 << 20;
const BEGINNING = 1 << 16;
/** Milliseconds between two reports of progress. */
const PROGRESS = 50;
/** How often in succession a connection may fail without a byte, and the milliseconds before the first of these attempts; they double. */
const FAILURES = 4;
const PAUSE = 250;
/** Bytes that a 32-bit module can address, and bytes that it needs in addition to a model. */
const MEMORY = 2 ** 32;
const BESIDE = 128 << 20;

const kilnError = (code, message) => Object.assign(new Error(message), { name: "KilnError", code });

const size = (bytes) => (bytes < 1e9 ? `${(bytes / 1e6).toFixed(0)} MB` : `${(bytes / 1e9).toFixed(1)} GB`);

let loading;

/** Loads the module once. */
function module() {
  loading ??= (async () => {
    const path = new URL("./models/", import.meta.url);
    const module = await import(`${path}kiln_web.js`);
    if (path.protocol === "file:") {
      const { readFile } = await import("node:fs/promises");
      module.initSync({ module: await readFile(new URL("kiln_web_bg.wasm", path)) });
    } else {
      await module.default();
    }
    return module;
  })().catch((error) => {
    // The next call tries again.
    loading = undefined;
    throw error;
  });
  return loading;
}

/** Lets the thread receive messages: without it, generation on the CPU would block them until the text ends. */
const turn = globalThis.setImmediate
  ? () => new Promise((resolve) => setImmediate(resolve))
  : (() => {
    const { port1, port2 } = new MessageChannel();
    // Several sessions may wait at once.
    const waiting = [];
    port1.onmessage = () => waiting.shift()();
    return () => new Promise((resolve) => {
      waiting.push(resolve);
      port2.postMessage(undefined);
    });
  })();

/** The folder of cached files, if the browser has one. */
async function kept(create) {
  const root = await navigator.storage.getDirectory();
  return root.getDirectoryHandle("kiln-models", { create });
}

const nameOf = (url) => encodeURIComponent(url).slice(-200);

/** The length of the body of a response; undefined if it is compressed or has no Content-Length. */
function lengthOf(response) {
  const length = response.headers.get("content-length");
  return length === null || response.headers.get("content-encoding") ? undefined : Number(length);
}

/** Waits, unless the signal aborts. */
function pause(milliseconds, signal) {
  return new Promise((resolve, reject) => {
    const abort = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    const timer = setTimeout(() => {
      signal.removeEventListener("abort", abort);
      resolve();
    }, milliseconds);
    signal.addEventListener("abort", abort, { once: true });
  });
}

/**
 * The body of a response with `bytes` bytes. When the connection fails, it continues from the byte that it has reached, with a range
 * request. From a server without them it reads all bytes again, and drops the first ones.
 */
function resuming(url, response, bytes, signal) {
  const version = response.headers.get("etag");
  let reader = response.body.getReader(), reached = 0, dropped = 0, failures = 0;
  /** Opens another connection. Returns false if that fails, too. */
  const reopen = async () => {
    const again = await fetch(url, { headers: { Range: `bytes=${reached}-` }, signal }).catch(() => undefined);
    signal.throwIfAborted();
    if (!again || again.status >= 500) return false;
    const from = again.status === 206 ? reached : 0;
    if (!again.ok || lengthOf(again) !== bytes - from || again.headers.get("etag") !== version) {
      await again.body?.cancel();
      throw kilnError("network", `${url} changed on the server, or its server can no longer send it, after ${size(reached)} of ${size(bytes)} were loaded: load it again`);
    }
    reader = again.body.getReader();
    dropped = reached - from;
    return true;
  };
  return new ReadableStream({
    async pull(controller) {
      for (;;) {
        const { done, value, error } = await reader.read().catch((error) => ({ done: true, error }));
        signal.throwIfAborted();
        const part = value?.subarray(Math.min(dropped, value.length));
        dropped -= value ? value.length - part.length : 0;
        if (part?.length) {
          reached += part.length;
          failures = 0;
          return controller.enqueue(part);
        }
        if (!done) continue;
        if (reached === bytes) return controller.close();
        do {
          if (failures === FAILURES) throw kilnError("network", `the connection to ${url} failed ${FAILURES} times after ${size(reached)} of ${size(bytes)}${error ? ` (${error.message})` : ""}: load it again`);
          await pause(PAUSE * 2 ** failures++, signal);
        } while (!await reopen());
      }
    },
    cancel: (reason) => reader.cancel(reason),
  }, { highWaterMark: 0 });
}

/** Opens a source: { bytes, stream, cached, keep }. */
async function opened({ url, blob }, cache, signal) {
  if (blob) return { bytes: blob.size, stream: blob.stream(), cached: false };
  if (cache) {
    const file = await kept(false).then((folder) => folder.getFileHandle(nameOf(url))).then((handle) => handle.getFile()).catch(() => undefined);
    if (file?.size) {
      // A changed file almost always has another length. Without a network the cached file is used.
      const head = await fetch(url, { method: "HEAD", signal }).catch(() => undefined);
      signal.throwIfAborted();
      if (!head?.ok || lengthOf(head) === file.size) return { bytes: file.size, stream: file.stream(), cached: true };
    }
  }
  const response = await fetch(url, { signal }).catch((error) => {
    signal.throwIfAborted();
    throw kilnError("network", `${url} cannot be loaded: ${error.message}`);
  });
  if (!response.ok) throw kilnError("network", `${url} cannot be loaded: the server answers ${response.status} ${response.statusText}`.trim());
  const length = lengthOf(response);
  const whole = length === undefined ? await response.blob() : undefined;
  const keep = cache ? await keeper(url).catch(() => undefined) : undefined;
  return { bytes: length ?? whole.size, stream: whole?.stream() ?? resuming(url, response, length, signal), cached: false, keep };
}

/** Writes a file to the cache under its address. The file is complete once it is closed. */
async function keeper(url) {
  const folder = await kept(true);
  const handle = await folder.getFileHandle(nameOf(url), { create: true });
  const writer = await handle.createWritable();
  let failed = false;
  const drop = async () => {
    failed = true;
    await writer.abort().catch(() => {});
    await folder.removeEntry(nameOf(url)).catch(() => {});
  };
  return {
    // A model is loaded even if the storage has no room for the file.
    write: (part) => (failed ? undefined : writer.write(part).catch(drop)),
    close: () => (failed ? undefined : writer.close().catch(drop)),
    drop: () => (failed ? undefined : drop()),
  };
}

/** Reads a source to its end, or until the plan is known. */
async function read({ source, options }, signal, report, planAlone) {
  const { bytes, stream, cached, keep } = await opened(source, options.cache && !planAlone, signal);
  const reader = stream.getReader();
  const abort = () => reader.cancel().catch(() => {});
  signal.addEventListener("abort", abort);
  let loader, loaded = 0, plan, reported = 0;
  const tell = () => {
    reported = performance.now();
    report({ loaded, total: bytes, cached, plan });
  };
  try {
    if (bytes > MEMORY) {
      throw kilnError("out-of-memory", `the file has ${size(bytes)}, and a module can address only ${size(MEMORY)}: use a smaller model, or one with fewer bits per weight`);
    }
    loader = await (await module()).ModelLoader.create(bytes, options);
    tell();
    for (;;) {
      const { done, value } = await reader.read();
      signal.throwIfAborted();
      if (done) break;
      for (let at = 0, part; at < value.length; at += part.length) {
        part = value.subarray(at, at + (plan ? PART : BEGINNING));
        await loader.push(part);
        loaded += part.length;
        if (!plan && (plan = loader.plan(options))) {
          Object.assign(plan, { bytes, problem: loader.problem() });
          check(plan, loader);
          tell();
          if (planAlone) return { plan };
        }
        if (performance.now() - reported > PROGRESS) tell();
      }
      await keep?.write(value);
    }
    const model = await loader.finish();
    await keep?.close();
    tell();
    return { model, plan };
  } catch (error) {
    await keep?.drop();
    throw error;
  } finally {
    signal.removeEventListener("abort", abort);
    abort();
    loader?.free();
  }
}

/** Throws if the model does not fit in the memory of the module. */
function check({ weights, cache, device }, loader) {
  if (loader.on_gpu() || weights + cache + BESIDE <= MEMORY) return;
  throw kilnError("out-of-memory", `the model needs ${size(weights)} for its weights and ${size(cache)} for keys and values, but ${device} has only `
    + `${size(MEMORY)}: use a smaller model, one with fewer bits per weight, or a smaller context`);
}

/** Answers the requests that arrive through a port or at a worker. */
export function serve(port) {
  let model;
  const running = new Map();
  const answers = {
    async load(of, signal, report) {
      const { model: loaded, plan } = await read(of, signal, report, false);
      // A close during the load found no model.
      if (signal.aborted) loaded.close();
      signal.throwIfAborted();
      model = loaded;
      return plan;
    },
    async plan(of, signal, report) {
      return (await read(of, signal, report, true)).plan;
    },
    async generate({ session, context, prompt, maxTokens, sampling }, signal, report) {
      const seed = sampling.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
      const request = { session, ...sampling, seed };
      let start;
      if (prompt.messages !== undefined) start = await model.ask("chat", { session, messages: prompt.messages });
      else if (prompt.text !== undefined) start = await model.ask("push", { session, text: prompt.text });
      else start = (await model.ask("tokens", { session })).length;
      report({ start });
      const room = context - start;
      for (let left = Math.min(maxTokens, room) > 0 ? start : 0; left > 0;) {
        await turn();
        if (signal.aborted) return { finish: "stopped", seed };
        left = await model.ask("prefill", { session });
        report({ start, left });
      }
      for (let made = 0; ; made++) {
        await turn();
        if (signal.aborted) return { finish: "stopped", seed };
        if (made >= maxTokens) return { finish: "length", seed };
        if (made >= room) return { finish: "context", seed };
        const more = made + 1 < Math.min(maxTokens, room);
        const token = await model.ask("next", { ...request, more });
        if (token === undefined) return { finish: "end", seed };
        report(token);
      }
    },
  };
  port.onmessage = async ({ data: { id, what, of } }) => {
    if (what === "stop") return running.get(id)?.abort();
    if (what === "close") {
      model?.close();
      for (const controller of running.values()) controller.abort();
      return port.close();
    }
    const controller = new AbortController();
    running.set(id, controller);
    const report = (value) => port.postMessage({ id, event: true, value });
    try {
      const answer = answers[what] ?? (() => model.ask(what, of));
      port.postMessage({ id, value: await answer(of, controller.signal, report) });
    } catch ({ name, message, code }) {
      // Not every browser can send error objects of the system to another thread.
      port.postMessage({ id, error: { name, message, code: typeof code === "string" ? code : undefined } });
    } finally {
      running.delete(id);
    }
  };
}
