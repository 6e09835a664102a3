// What takes the bytes of a module, by crate and by family of kernels.
// CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_RUSTFLAGS="-C target-feature=+simd128 -C symbol-mangling-version=v0" cargo build -p kiln-web --profile web --target wasm32-unknown-unknown --no-default-features --features operations
// wasm-bindgen --target web --out-dir target/kiln/web/names target/wasm32-unknown-unknown/web/kiln_web.wasm
// node benches/web/sizes.mjs target/kiln/web/names/kiln_web_bg.wasm

import { readFile } from "node:fs/promises";

const bytes = await readFile(process.argv[2]);
const module = await WebAssembly.compile(bytes);
const imported = WebAssembly.Module.imports(module).filter(({ kind }) => kind === "function").length;

/** A number in LEB128 at `at`, and where it ends. */
function number(at) {
  let [value, scale] = [0, 1];
  for (;;) {
    const byte = bytes[at++];
    value += (byte & 0x7f) * scale;
    scale *= 128;
    if (byte < 0x80) return [value, at];
  }
}

/** What begins with its length at `at`, and where it ends. */
function text(at) {
  const [length, start] = number(at);
  return [bytes.toString("utf8", start, start + length), start + length];
}

const [lengths, names, sections] = [[], new Map(), new Map()];
for (let at = 8; at < bytes.length;) {
  const id = bytes[at];
  const [length, start] = number(at + 1);
  const [title, inside] = id === 0 ? text(start) : ["", start];
  const kind = { 10: "code", 11: "data" }[id] ?? "others";
  // Names are not in a module of a page.
  if (id !== 0) sections.set(kind, (sections.get(kind) ?? 0) + length);
  if (id === 10) {
    let [count, body] = number(start);
    for (; count > 0; count--) {
      const [length, first] = number(body);
      lengths.push(length);
      body = first + length;
    }
  }
  for (let sub = inside; title === "name" && sub < start + length;) {
    const kind = bytes[sub];
    const [length, first] = number(sub + 1);
    if (kind === 1) {
      let [count, entry] = number(first);
      for (; count > 0; count--) {
        const [index, after] = number(entry);
        const [name, end] = text(after);
        names.set(index, name);
        entry = end;
      }
    }
    sub = first + length;
  }
  at = start + length;
}

/** The first that a name matches. */
const FAMILIES = [
  ["quantised formats", /kiln_simd.*(::quant::|Quantize|QuantMatmul|Dequantize)/],
  ["reductions", /kiln_simd.*::reduce::/],
  ["element-wise functions", /kiln_simd.*::(elementwise|fused)::/],
  ["convolutions and pools", /kiln_simd.*::(conv|pooling)::/],
  ["attention", /kiln_simd.*::attention::/],
  ["matrix products", /kiln_simd.*::(matmul|tile)::/],
  ["norms and softmax", /kiln_simd.*::rows::/],
  ["other kernels, and the ways to all", /kiln_simd/],
  ["kiln-web", /kiln_web|^(engine|batch|operations)_|^_*wbindgen|js_sys|wasm_bindgen/],
  ["kiln-route", /kiln_route/],
  ["JSON", /serde|zmij|itoa/],
  ["kiln", /<?kiln(\[\w+\])?::/],
  ["kiln-ir", /kiln_ir/],
  ["the standard library, and others", /./s],
];

const table = new Map(FAMILIES.map(([family]) => [family, 0]));
lengths.forEach((length, i) => {
  const name = (names.get(imported + i) ?? "?").replace(/\[[0-9a-f]+\]/g, "");
  const [family] = FAMILIES.find(([, pattern]) => pattern.test(name));
  table.set(family, table.get(family) + length);
});
for (const kind of ["data", "others"]) table.set(kind === "data" ? "constants and texts" : "other sections", sections.get(kind));
for (const [family, size] of [...table].sort(([, a], [, b]) => b - a)) console.log(`${family.padEnd(40)} ${String(size).padStart(8)}`);
