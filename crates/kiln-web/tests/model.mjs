// A small language model of random weights as a GGUF file, and what it computes, in f64 by plain loops.

const F32 = 0, Q8_0 = 8;
const U32_VALUE = 4, I32_VALUE = 5, F32_VALUE = 6, STRING = 8, ARRAY = 9;

/** Numbers of [-1, 1), by Park and Miller's generator. */
function generator(seed) {
  let state = seed;
  return () => {
    state = (state * 48271) % 2147483647;
    return state / 1073741823.5 - 1;
  };
}

/** Bytes, one behind the other. */
class Bytes {
  parts = [];
  length = 0;

  add(bytes) {
    this.parts.push(bytes);
    this.length += bytes.length;
    return this;
  }

  number(setter, bytes, value) {
    const view = new DataView(new ArrayBuffer(bytes));
    view[setter](0, value, true);
    return this.add(new Uint8Array(view.buffer));
  }

  u32(n) { return this.number("setUint32", 4, n); }
  u64(n) { return this.number("setBigUint64", 8, BigInt(n)); }
  string(text) {
    const bytes = new TextEncoder().encode(text);
    return this.u64(bytes.length).add(bytes);
  }

  value(kind, value) {
    if (kind === STRING) return this.string(value);
    if (kind === U32_VALUE) return this.u32(value);
    return kind === I32_VALUE ? this.number("setInt32", 4, value) : this.number("setFloat32", 4, value);
  }

  pad(to) { return this.add(new Uint8Array((to - (this.length % to)) % to)); }
}

export const SIZES = { width: 64, heads: 4, kv: 2, head: 16, ffn: 96, layers: 2, context: 128, vocabulary: 259 };

/** Writes the messages one behind the other, which a test can read. */
const TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

/** The tokens, their kinds and scores: unknown, begin, end, and all bytes. */
const VOCABULARY = [["<unk>", 2], ["<s>", 3], ["</s>", 3],
  ...Array.from({ length: 256 }, (_, byte) => [`<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`, 6])];

/**
 * The beginning of a file: metadata, and descriptions of tensors of these names, kinds, extents and bytes. `ends` says how many bytes
 * the whole file has.
 */
function header(tensors, { ffn = SIZES.ffn, template = TEMPLATE, vocabulary = VOCABULARY, sizes = SIZES } = {}) {
  const { width, heads, kv, layers, context } = sizes;
  const entries = [
    ["general.architecture", STRING, "llama"],
    ...Object.entries({
      block_count: layers, context_length: context, embedding_length: width, feed_forward_length: ffn,
      "attention.head_count": heads, "attention.head_count_kv": kv,
    }).map(([key, value]) => [`llama.${key}`, U32_VALUE, value]),
    ["llama.attention.layer_norm_rms_epsilon", F32_VALUE, 1e-5],
    ["tokenizer.ggml.model", STRING, "llama"],
    ["tokenizer.ggml.tokens", ARRAY, STRING, vocabulary.map(([text]) => text)],
    ["tokenizer.ggml.token_type", ARRAY, I32_VALUE, vocabulary.map(([, kind]) => kind)],
    ["tokenizer.ggml.scores", ARRAY, F32_VALUE, vocabulary.map(() => 0)],
    ["tokenizer.ggml.bos_token_id", U32_VALUE, 1],
    ["tokenizer.ggml.eos_token_id", U32_VALUE, 2],
    ...(template ? [["tokenizer.chat_template", STRING, template]] : []),
  ];
  const out = new Bytes().add(new TextEncoder().encode("GGUF")).u32(3).u64(tensors.length).u64(entries.length);
  for (const [key, kind, ...value] of entries) {
    out.string(key).u32(kind);
    if (kind === ARRAY) {
      out.u32(value[0]).u64(value[1].length);
      value[1].forEach((element) => out.value(value[0], element));
    } else out.value(kind, value[0]);
  }
  let offset = 0;
  for (const { name, kind, extents, bytes } of tensors) {
    out.string(name).u32(extents.length);
    extents.forEach((extent) => out.u64(extent));
    out.u32(kind).u64(offset);
    offset += Math.ceil(bytes / 32) * 32;
  }
  out.pad(32);
  return { out, ends: out.length + offset };
}

/** The tensors: names, extents (the contiguous one first) and how large their elements are. */
function shapes(ffn = SIZES.ffn, { width, heads, kv, head, layers, vocabulary } = SIZES) {
  const size = (n) => 1.5 / Math.sqrt(n);
  const block = (n) => Object.entries({
    attn_norm: [[width], 0], attn_q: [[width, heads * head], size(width)], attn_k: [[width, kv * head], size(width)],
    attn_v: [[width, kv * head], size(width)], attn_output: [[heads * head, width], size(width)], ffn_norm: [[width], 0],
    ffn_gate: [[width, ffn], size(width)], ffn_up: [[width, ffn], size(width)], ffn_down: [[ffn, width], size(ffn)],
  }).map(([name, of]) => [`blk.${n}.${name}.weight`, ...of]);
  return [
    ["token_embd.weight", [width, vocabulary], 1], ["output_norm.weight", [width], 0],
    ["output.weight", [width, vocabulary], size(width)], ...Array.from({ length: layers }, (_, n) => block(n)).flat(),
  ];
}

/** The model: the bytes of its file, and the logits that follow tokens. */
export function randomModel({ seed = 20, template } = {}) {
  const random = generator(seed);
  const weights = {}, tensors = [];
  for (const [name, extents, scale] of shapes()) {
    const n = extents.reduce((product, extent) => product * extent, 1);
    // Norms are near 1. Matrices of a layer except its output of attention are of blocks of 32 bytes with a scale of 2^-9.
    const quantised = /ffn_(gate|up|down)|attn_[qkv]\./.test(name);
    const values = Float64Array.from({ length: n }, () => (scale === 0 ? 1 + random() / 4 : quantised ? Math.round(random() * 127) / 512 : Math.fround(random() * scale)));
    weights[name] = values;
    const bytes = quantised ? new Uint8Array((n / 32) * 34) : new Uint8Array(Float32Array.from(values).buffer);
    for (let at = 0; quantised && at < n; at += 32) {
      bytes.set([0x00, 0x18], (at / 32) * 34);
      bytes.set(new Uint8Array(Int8Array.from(values.subarray(at, at + 32), (x) => x * 512).buffer), (at / 32) * 34 + 2);
    }
    tensors.push({ name, kind: quantised ? Q8_0 : F32, extents, bytes: bytes.length, data: bytes });
  }
  return { file: written(tensors, { template }), logits: (tokens) => logits(weights, tokens) };
}

/** The bytes of a file with these tensors. */
function written(tensors, options) {
  const { out } = header(tensors, options);
  for (const { data } of tensors) out.add(data).pad(32);
  const file = new Uint8Array(out.length);
  let at = 0;
  for (const part of out.parts) {
    file.set(part, at);
    at += part.length;
  }
  return file;
}

const NORMAL = 1, CONTROL = 3;

/**
 * A model that answers every conversation with the same messages in the format harmony: it thinks "hmm", and answers "Yes".
 * Its blocks add nothing, so the next token depends on the last one alone.
 */
export function harmonyModel() {
  const marks = [["<|start|>", CONTROL], ["<|channel|>", CONTROL], ["<|message|>", CONTROL], ["<|end|>", CONTROL],
    ["hmm", NORMAL], ["assistant", NORMAL], ["final", NORMAL], ["Yes", NORMAL],
    ["<|return|>", CONTROL], ["<|call|>", CONTROL], ["▁", NORMAL]];
  const vocabulary = [...VOCABULARY, ...marks];
  const [start, channel, message, end, hmm, assistant, final, yes] = marks.map((_, i) => VOCABULARY.length + i);
  const follows = new Map();
  // The prompt begins to think; its last token is the byte "I".
  [3 + 73, hmm, end, start, assistant, channel, final, message, yes, 2].reduce((from, to) => (follows.set(from, to), to));
  const sizes = { ...SIZES, width: 288, heads: 1, kv: 1, head: 288, layers: 1, vocabulary: vocabulary.length };
  const { width } = sizes;
  const tensors = shapes(32, sizes).map(([name, extents]) => {
    const values = new Float32Array(extents.reduce((product, extent) => product * extent, 1));
    if (/norm/.test(name)) values.fill(1);
    if (name === "token_embd.weight") vocabulary.forEach((_, token) => { values[token * width + token] = 1; });
    if (name === "output.weight") follows.forEach((to, from) => { values[to * width + from] = 1; });
    return { name, kind: F32, extents, bytes: values.byteLength, data: new Uint8Array(values.buffer) };
  });
  const template = "{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant<|channel|>analysis<|message|>I";
  return written(tensors, { ffn: 32, template, vocabulary, sizes });
}

/** The header of a model with larger networks, and the length of its file, whose weights are nowhere. */
export function largeModel(ffn) {
  const tensors = shapes(ffn).map(([name, extents]) => ({ name, kind: F32, extents, bytes: 4 * extents.reduce((product, extent) => product * extent, 1) }));
  const { out, ends } = header(tensors, { ffn });
  return { beginning: Buffer.concat(out.parts), bytes: ends };
}

function logits(weights, tokens) {
  const { width, heads, kv, head, ffn, layers, vocabulary } = SIZES;
  const of = (name) => weights[`${name}.weight`];
  const product = (w, x, rows) => Array.from({ length: rows }, (_, row) => x.reduce((sum, xi, i) => sum + w[row * x.length + i] * xi, 0));
  const norm = (w, x) => {
    const by = 1 / Math.sqrt(x.reduce((sum, xi) => sum + xi * xi, 0) / x.length + 1e-5);
    return x.map((xi, i) => xi * by * w[i]);
  };
  const rotated = (x, position) => x.map((_, i) => {
    const pair = Math.floor((i % head) / 2), angle = position * 10000 ** ((-2 * pair) / head);
    const [a, b] = [x[i - (i % 2)], x[i - (i % 2) + 1]];
    return i % 2 === 0 ? a * Math.cos(angle) - b * Math.sin(angle) : a * Math.sin(angle) + b * Math.cos(angle);
  });
  const add = (x, y) => x.map((xi, i) => xi + y[i]);
  let rows = tokens.map((token) => [...of("token_embd").subarray(token * width, (token + 1) * width)]);
  for (let n = 0; n < layers; n++) {
    const w = (name) => of(`blk.${n}.${name}`);
    const normed = rows.map((x) => norm(w("attn_norm"), x));
    const [q, k, v] = [["attn_q", heads], ["attn_k", kv], ["attn_v", kv]].map(([name, count]) => normed.map((x) => product(w(name), x, count * head)));
    const [turned, keys] = [q, k].map((all) => all.map(rotated));
    rows = rows.map((x, at) => {
      const seen = Array.from({ length: heads }, (_, h) => {
        const from = Math.floor(h / (heads / kv)) * head;
        const scores = keys.slice(0, at + 1).map((key) => {
          let sum = 0;
          for (let i = 0; i < head; i++) sum += turned[at][h * head + i] * key[from + i];
          return sum / Math.sqrt(head);
        });
        const most = Math.max(...scores), shares = scores.map((score) => Math.exp(score - most));
        const total = shares.reduce((sum, share) => sum + share, 0);
        return Array.from({ length: head }, (_, i) => shares.reduce((sum, share, j) => sum + (share / total) * v[j][from + i], 0));
      }).flat();
      return add(x, product(w("attn_output"), seen, width));
    });
    rows = rows.map((x) => {
      const h = norm(w("ffn_norm"), x);
      const [gate, up] = [product(w("ffn_gate"), h, ffn), product(w("ffn_up"), h, ffn)];
      return add(x, product(w("ffn_down"), gate.map((g, i) => (g / (1 + Math.exp(-g))) * up[i]), width));
    });
  }
  return product(of("output"), norm(of("output_norm"), rows.at(-1)), vocabulary);
}

/** Whether each of the tokens behind the first `prompt` is the likeliest of the reference, or as likely as rounding allows. */
export function areLikeliest(model, tokens, prompt) {
  return tokens.slice(prompt).every((token, i) => {
    const all = model.logits(tokens.slice(0, prompt + i));
    const most = Math.max(...all);
    // Keys and values are kept in 16 bits.
    return all[token] >= most - 5e-3 * Math.max(...all.map(Math.abs));
  });
}
