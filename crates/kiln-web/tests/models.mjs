// Language models in Node, where there is no WebGPU and no worker: simd128 against f64.
// node models.mjs FOLDER
// With KILN_WEB_MODEL=FILE and KILN_STORIES=FOLDER also real models.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { openAsBlob } from "node:fs";
import { readFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { setTimeout as after } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import { areLikeliest, harmonyModel, largeModel, randomModel } from "./model.mjs";

const { Model } = await import(pathToFileURL(`${resolve(process.argv[2])}/models.js`));
const { KILN_STORIES: stories, KILN_WEB_MODEL: smollm2 } = process.env;
const here = { worker: false };
const greedy = { temperature: 0 };

/** What a promise is rejected with. */
const rejected = (promise) => promise.then(() => ["nothing"], ({ name, code, message }) => [name, code, message]);

async function collect(generation) {
  const made = [];
  for (;;) {
    const { done, value } = await generation.next();
    if (done) return { made, ...value };
    made.push(value);
  }
}

const random = randomModel();

{
  const seen = [];
  const model = await Model.load(new Blob([random.file]), { ...here, progress: (progress) => seen.push(progress) });
  assert.deepEqual([seen[0].loaded, seen.at(-1).loaded, seen[0].total], [0, random.file.length, random.file.length]);
  // 2 layers of keys and values of 2 heads of 16 elements of 2 bytes, for 128 tokens.
  const { architecture, cache, bytes, context, device, layers } = model.plan;
  assert.deepEqual({ architecture, cache, bytes, context, device, layers },
    { architecture: "llama", cache: 2 * 2 * 2 * 16 * 2 * 128, bytes: random.file.length, context: 128, device: "simd128 x1", layers: 2 });
  assert.ok(seen.find(({ plan }) => plan).loaded < random.file.length, "the plan comes before the weights");

  const session = await model.session();
  const { made, finish } = await collect(session.generate("Ab", { ...greedy, maxTokens: 60 }));
  assert.ok(finish === "length" && made.length === 60, `${made.length} tokens, ${finish}`);
  const tokens = [...await session.tokens()];
  // Begin, the three bytes of a space, and two letters.
  assert.deepEqual(tokens.slice(0, 6), [1, 3 + 0xe2, 3 + 0x96, 3 + 0x81, 3 + 65, 3 + 98]);
  assert.deepEqual(made.map(({ token }) => token), tokens.slice(6));
  assert.ok(areLikeliest(random, tokens, 6), `${tokens} are not the likeliest`);
  assert.equal((await session.explain()).chosen, "simd128 x1");
  // Until the context is full, and no further.
  const rest = await collect(session.generate(undefined, greedy));
  assert.deepEqual([rest.finish, (await session.tokens()).length], ["context", 128]);
  const [, code] = await rejected(session.generate("more", greedy).next());
  assert.equal(code, "context-full");

  // A seed says what is drawn; what begins alike is not computed again and gives the same.
  const drawn = async (session, seed) => (await collect(session.chat([{ role: "user", content: "Hi" }], { seed, maxTokens: 20, temperature: 1.5 }))).made.map(({ token }) => token);
  const other = await model.session({ context: 64 });
  const first = await drawn(other, 7);
  assert.deepEqual(await drawn(other, 7), first);
  assert.deepEqual(await drawn(session, 7), first);
  assert.notDeepEqual(await drawn(other, 8), first);

  // A text that nobody reads on has the tokens that were read; one that is stopped, too.
  let taken = 0;
  for await (const _ of other.chat([{ role: "user", content: "Hi" }], { seed: 7, temperature: 1.5 })) if (++taken === 3) break;
  const length = (await other.tokens()).length;
  assert.deepEqual([...await other.tokens()].slice(-3), first.slice(0, 3));
  const controller = new AbortController();
  const stopped = other.generate(undefined, { ...greedy, signal: controller.signal });
  await stopped.next();
  controller.abort();
  // The abort ends the generation, even before the caller asks for the next token.
  // A token that is being computed comes still.
  const generated = (await other.tokens()).length;
  await after(100);
  assert.ok((await other.tokens()).length <= generated + 1);
  assert.equal((await rejected(stopped.next()))[0], "AbortError");
  assert.equal((await other.tokens()).length, length + 1);
  await other.close();
  assert.equal((await rejected(other.tokens()))[1], "parameter");

  // A long prompt is computed in parts, and says how far it is; a signal stops it between two parts, and what is computed stays.
  const parted = await model.session();
  const stop = new AbortController();
  const parts = [];
  const progress = (part) => parts.push(part);
  const long = { ...greedy, maxTokens: 10, signal: stop.signal, progress: (part) => { progress(part); stop.abort(); } };
  assert.equal((await rejected(parted.generate("a".repeat(100), long).next()))[0], "AbortError");
  assert.deepEqual([parts, (await parted.tokens()).length], [[{ computed: 64, total: 104 }], 104]);
  await collect(parted.generate(undefined, { ...greedy, maxTokens: 10, progress }));
  assert.deepEqual(parts.map(({ computed }) => computed), [64, 72, 80, 88, 104]);
  assert.ok(areLikeliest(random, [...await parted.tokens()], 104), `${await parted.tokens()} are not the likeliest`);
  // What the callback throws ends the generation, and nothing else.
  const throwing = { ...greedy, maxTokens: 1, progress: () => { throw new Error("mine"); } };
  assert.deepEqual(await rejected(parted.generate("b", throwing).next()), ["Error", undefined, "mine"]);
  assert.equal((await collect(parted.generate("b", { ...greedy, maxTokens: 1 }))).made.length, 1);
  await parted.close();

  const wrong = await Promise.all([
    rejected(session.chat([{ role: "user" }]).next()), rejected(model.session({ context: 0 })),
  ]);
  assert.deepEqual(wrong.map(([, code]) => code), ["parameter", "model"]);
  await session.truncate(1);
  assert.equal((await rejected(session.generate("a", { topP: 0 }).next()))[1], "parameter");
  model.close();
  assert.match((await rejected(session.tokens()))[2], /closed/);
  console.log("models: 60 tokens of a random model are the likeliest, and sessions end at their limits");
}

{
  // What a reply in the format harmony is made of. Without a conversation the text is that of all channels.
  const model = await Model.load(new Blob([harmonyModel()]), here);
  const session = await model.session();
  const { made, finish } = await collect(session.chat([{ role: "user", content: "Well?" }], { ...greedy, maxTokens: 20 }));
  const of = (wanted) => made.filter(({ channel }) => channel === wanted).map(({ text }) => text).join("");
  assert.deepEqual([of("thinking"), of("answer"), made.length, finish], ["hmm", "Yes", 8, "end"]);
  // An end token that the caller did not receive is dropped, too.
  let received = 0;
  for await (const _ of session.chat([{ role: "user", content: "Well?" }], greedy)) {
    if (++received < made.length) continue;
    while ((await session.tokens()).at(-1) === made.at(-1).token) await after(1);
    break;
  }
  assert.equal((await session.tokens()).at(-1), made.at(-1).token);
  const plain = await model.session();
  const { made: all } = await collect(plain.generate("I", { ...greedy, maxTokens: 20 }));
  assert.deepEqual([all.map(({ text }) => text).join(""), all.some(({ channel }) => channel)], ["hmmassistantfinalYes", false]);
  model.close();
  console.log("models: a reply in the format harmony comes in channels");
}

{
  const cut = new Blob([random.file.subarray(0, random.file.length - 1)]);
  const one = { ...here };
  const errors = {
    none: rejected(Model.load(new Blob(["no model"]), one)),
    longer: rejected(Model.load(new Blob([new Uint8Array(1 << 20)]), one)),
    cut: rejected(Model.load(cut, one)),
    head: rejected(Model.load(new Blob([random.file.subarray(0, 1000)]), one)),
    empty: rejected(Model.load(new ArrayBuffer(0), one)),
    source: rejected(Model.load(5, one)),
    gpu: rejected(Model.load(new Blob([random.file]), { ...one, device: "gpu" })),
    device: rejected(Model.load(new Blob([random.file]), { ...one, device: "toaster" })),
  };
  const codes = {};
  for (const [name, error] of Object.entries(errors)) codes[name] = (await error).slice(0, 2).join(" ");
  assert.deepEqual(codes, {
    none: "KilnError file", longer: "KilnError file", cut: "KilnError file", head: "KilnError file", empty: "KilnError file",
    source: "KilnError parameter", gpu: "KilnError unavailable", device: "KilnError parameter",
  });
  const plain = await Model.load(new Blob([randomModel({ template: "" }).file]), one);
  const session = await plain.session();
  assert.equal((await rejected(session.chat([{ role: "user", content: "Hi" }]).next()))[1], "template");
  plain.close();
}

{
  // A server that sends the beginning of a file and no more: what does not fit is refused before its weights come.
  const large = largeModel(2_750_000);
  const files = { "/large": [large.beginning, large.bytes], "/huge": [large.beginning, 5e9], "/model": [random.file, random.file.length] };
  const server = createServer((request, response) => {
    const file = files[request.url] ?? [];
    if (typeof file === "function") return file(request, response);
    const [body, length] = file;
    if (!body) return response.writeHead(404).end();
    response.writeHead(200, { "Content-Length": length }).write(body);
    if (body.length === length) response.end();
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const at = (path) => `http://127.0.0.1:${server.address().port}${path}`;
  assert.deepEqual((await rejected(Model.load(at("/none"), here))).slice(0, 2), ["KilnError", "network"]);
  for (const path of ["/large", "/huge"]) assert.deepEqual((await rejected(Model.load(at(path), here))).slice(0, 2), ["KilnError", "out-of-memory"]);
  const { weights, parameters } = await Model.plan(at("/model"), here);
  assert.ok(weights > 0 && parameters > 0);
  const model = await Model.load(at("/model"), here);
  model.close();
  // Connections that fail after `parts` bytes. The server sends ranges, or only whole files; or each connection fails at once.
  const requests = [];
  const failing = (path, { ranges, parts, etag = () => "1" }) => {
    requests.length = 0;
    files[path] = (request, response) => {
      const from = ranges ? Number(/^bytes=(\d+)-$/.exec(request.headers.range ?? "")?.[1] ?? 0) : 0;
      requests.push(request.headers.range);
      const headers = { "Content-Length": random.file.length - from, ETag: etag(requests.length) };
      if (from) headers["Content-Range"] = `bytes ${from}-${random.file.length - 1}/${random.file.length}`;
      const to = Math.min(from + parts(requests.length), random.file.length);
      response.writeHead(from ? 206 : 200, headers);
      response.write(random.file.subarray(from, to), () => (to === random.file.length ? response.end() : setTimeout(() => response.destroy(), 20)));
    };
    return Model.load(at(path), here);
  };
  const third = Math.ceil(random.file.length / 3);
  for (const ranges of [true, false]) {
    const made = await failing(`/failing-${ranges}`, { ranges, parts: (n) => (ranges ? third : n * third) });
    assert.deepEqual(requests, [undefined, `bytes=${third}-`, `bytes=${2 * third}-`]);
    const session = await made.session();
    await collect(session.generate("Ab", { ...greedy, maxTokens: 5 }));
    assert.ok(areLikeliest(random, [...await session.tokens()], 6), "the bytes are those of the file");
    made.close();
  }
  const [, ended, why] = await rejected(failing("/dead", { ranges: true, parts: (n) => (n === 1 ? third : 0) }));
  assert.ok(ended === "network" && /failed 4 times after/.test(why) && requests.length === 5, `${ended} ${why}, ${requests.length} requests`);
  const [, changed, reason] = await rejected(failing("/changed", { ranges: true, parts: () => third, etag: (n) => `${n}` }));
  assert.ok(changed === "network" && /changed on the server/.test(reason), `${changed} ${reason}`);
  console.log("models: a load continues after its connection has failed");
  // A load that is given up.
  const controller = new AbortController();
  const { beginning } = largeModel(1000);
  files["/slow"] = [beginning, largeModel(1000).bytes];
  const given = Model.load(at("/slow"), { ...here, signal: controller.signal, progress: ({ plan }) => plan && controller.abort() });
  assert.equal((await rejected(given))[0], "AbortError");
  server.closeAllConnections();
  server.close();
  console.log("models: files that are not models, do not fit or are cancelled are refused");
}

if (smollm2) {
  // The tokens that exact arithmetic gives, as in crates/kiln-llm/tests/smollm2.rs.
  const expected = [504, 3575, 282, 4649, 314, 7042, 30, 198, 198, 504, 2988, 314, 42];
  const model = await Model.load(await openAsBlob(smollm2), here);
  const session = await model.session({ context: 64 });
  const start = performance.now();
  await collect(session.generate("The capital of France is", { ...greedy, maxTokens: 8 }));
  assert.deepEqual([...await session.tokens()], expected);
  model.close();
  console.log(`models: eight tokens of SmolLM2 in ${((performance.now() - start) / 1000).toFixed(1)} s`);
}

if (stories) {
  const expected = JSON.parse(await readFile(join(stories, "greedy_tokens.json"), "utf8"));
  const model = await Model.load(await readFile(join(stories, "stories260K-f32.gguf")), here);
  const session = await model.session();
  await collect(session.generate("", { ...greedy, maxTokens: expected.length - 1 }));
  assert.deepEqual([...await session.tokens()], expected);
  model.close();
  console.log(`models: ${expected.length} of ${expected.length} tokens of stories260K`);
}
