// Language models for JavaScript. A model loads while its file arrives, generates token by token, and runs in its own worker.

/** An error of kiln. */
function kilnError(code, message) {
  return Object.assign(new Error(message), { name: "KilnError", code });
}

/** A port to a model in this thread. Its messages are not copied, because Node cannot copy files. */
function hereAlone(failed) {
  const [near, far] = [{}, { close() {} }];
  const served = import("./models-core.js").then(({ serve }) => serve(far));
  served.catch(failed);
  near.postMessage = (data) => served.then(() => far.onmessage({ data }), () => {});
  far.postMessage = (data) => queueMicrotask(() => near.onmessage({ data }));
  return near;
}

/** The thread of a model: sends requests to it, and receives its answers. */
class Link {
  #port;
  #worker;
  #next = 0;
  /** The requests without an answer, by number: { resolve, reject, event }. */
  #waiting = new Map();
  #failed;

  constructor(inWorker) {
    if (inWorker) {
      this.#worker = this.#port = new Worker(new URL("./models-worker.js", import.meta.url), { type: "module" });
      this.#worker.addEventListener("error", (event) => {
        this.#fail(kilnError("module", `the module of the model failed (${event.message ?? "its worker did not start"}); load the model again`));
      });
    } else {
      this.#port = hereAlone((error) => this.#fail(error));
    }
    this.#port.onmessage = ({ data: { id, event, value, error } }) => {
      const waiting = this.#waiting.get(id);
      if (!waiting) return;
      if (event) return waiting.event?.(value);
      this.#waiting.delete(id);
      if (error) waiting.reject(error.code ? kilnError(error.code, error.message) : Object.assign(new Error(error.message), { name: error.name }));
      else waiting.resolve(value);
    };
  }

  /** Sends a request. Returns { promise, stop }. Calls `event` with each value that arrives before the answer. */
  ask(what, of, event) {
    const id = this.#next++;
    const promise = new Promise((resolve, reject) => {
      if (this.#failed) return reject(this.#failed);
      this.#waiting.set(id, { resolve, reject, event });
      this.#port.postMessage({ id, what, of });
    });
    return { promise, stop: () => this.#port.postMessage({ id, what: "stop" }) };
  }

  #fail(error) {
    this.#failed ??= error;
    for (const { reject } of this.#waiting.values()) reject(this.#failed);
    this.#waiting.clear();
  }

  /** Ends the thread, which frees the memory of the model. */
  close() {
    this.#fail(kilnError("parameter", "the model is closed; load it again"));
    if (this.#worker) this.#worker.terminate();
    else this.#port.postMessage({ what: "close" });
  }
}

/** A source in the form that its thread reads. */
function described(source) {
  if (typeof source === "string" || source instanceof URL) {
    return { url: new URL(source, globalThis.document?.baseURI ?? globalThis.location?.href).href };
  }
  if (source instanceof Blob) return { blob: source };
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return { blob: new Blob([source]) };
  throw kilnError("parameter", "a model is loaded from a URL, a File or Blob, or an ArrayBuffer");
}

/** Sends a request, and ends the thread if the signal aborts or the request fails. */
async function asked(link, what, of, signal, event) {
  const { promise } = link.ask(what, of, event);
  const abort = () => link.close();
  signal?.addEventListener("abort", abort);
  try {
    return await promise;
  } catch (error) {
    link.close();
    signal?.throwIfAborted();
    throw error;
  } finally {
    signal?.removeEventListener("abort", abort);
  }
}

/** A language model from a GGUF file. */
export class Model {
  #link;
  #plan;

  constructor(link, plan) {
    this.#link = link;
    this.#plan = plan;
  }

  /**
   * Loads a model. Its weights are copied from the stream to the GPU, or to the memory of the module, and nowhere else.
   * `progress` is called with { loaded, total, cached, plan }. The plan has the memory that the model needs, before its weights arrive.
   */
  static async load(source, { progress, signal, worker = true, ...options } = {}) {
    signal?.throwIfAborted();
    const from = described(source);
    const link = new Link(worker);
    return new Model(link, await asked(link, "load", { source: from, options }, signal, progress));
  }

  /** Reads the properties of a model and the memory that it needs from the beginning of its file. */
  static async plan(source, { signal, worker = true, ...options } = {}) {
    signal?.throwIfAborted();
    const from = described(source);
    const link = new Link(worker);
    try {
      return await asked(link, "plan", { source: from, options }, signal);
    } finally {
      link.close();
    }
  }

  /** The properties of the model, the memory that it needs, and the device with its weights. */
  get plan() {
    return this.#plan;
  }

  /** Makes a session: a sequence of tokens with their keys and values. */
  async session({ context } = {}) {
    const { session, context: room } = await this.#link.ask("open", { context }).promise;
    return new Session(this.#link, session, room);
  }

  /** Ends the model and its sessions, and frees their memory. */
  close() {
    this.#link.close();
  }

  /** Destroys the device of the GPU, to test how a program reacts to a lost device. */
  destroyDevice() {
    return this.#link.ask("destroy", {}).promise;
  }
}

/** A sequence of tokens of a model. */
export class Session {
  #link;
  #session;
  #context;
  #busy = false;

  constructor(link, session, context) {
    this.#link = link;
    this.#session = session;
    this.#context = context;
  }

  /** Maximum number of tokens. */
  get context() {
    return this.#context;
  }

  /** Appends a text to the session, if there is one, and generates tokens after it. */
  generate(prompt, options) {
    return this.#generation({ text: prompt }, options);
  }

  /** Answers a conversation, formatted by the model's template. Tokens that it shares with the previous one are not computed again. */
  chat(messages, options) {
    return this.#generation({ messages }, options);
  }

  async *#generation(prompt, { maxTokens = Infinity, progress, signal, ...sampling } = {}) {
    signal?.throwIfAborted();
    if (this.#busy) throw kilnError("parameter", "the session is generating; await its end, or make another session");
    this.#busy = true;
    const made = [];
    let start, taken = 0, ended = false, complete = false, failed, wake = () => {};
    const { promise, stop } = this.#link.ask("generate", { session: this.#session, context: this.#context, prompt, maxTokens, sampling }, (value) => {
      if (value.start === undefined) made.push(value);
      else if (value.left === undefined) start = value.start;
      else {
        try {
          progress?.({ computed: start - value.left, total: start });
        } catch (error) {
          failed ??= { error };
          stop();
        }
      }
      wake();
    });
    const end = promise.finally(() => {
      ended = true;
      wake();
    });
    end.catch(() => {});
    const abort = () => {
      stop();
      wake();
    };
    signal?.addEventListener("abort", abort);
    try {
      for (;;) {
        signal?.throwIfAborted();
        if (failed) throw failed.error;
        if (taken < made.length) yield made[taken++];
        else if (!ended) await new Promise((resolve) => { wake = resolve; });
        else {
          const finish = await end;
          complete = true;
          return finish;
        }
      }
    } finally {
      signal?.removeEventListener("abort", abort);
      if (!ended) stop();
      await end.catch(() => {});
      // The session drops tokens that the caller did not take, among them an end token, which is not reported.
      if (!complete && start !== undefined) await this.truncate(start + taken).catch(() => {});
      this.#busy = false;
    }
  }

  /** The tokens so far. */
  tokens() {
    return this.#link.ask("tokens", { session: this.#session }).promise;
  }

  /** Drops all tokens after the first `keep`. */
  truncate(keep) {
    return this.#link.ask("truncate", { session: this.#session, keep }).promise;
  }

  /** Where a token is computed, and why. */
  explain() {
    return this.#link.ask("explain", { session: this.#session }).promise;
  }

  /** Ends the session, and frees its memory. */
  close() {
    return this.#link.ask("end", { session: this.#session }).promise;
  }
}

/** Removes all files that `cache: true` stored. */
export async function clearCache() {
  const root = await navigator.storage.getDirectory();
  await root.removeEntry("kiln-models", { recursive: true }).catch((error) => {
    if (error.name !== "NotFoundError") throw error;
  });
}
