// The chat page: loads a model from a file, and answers messages token by token.

import { Model } from "./models.js";

/** The model that `cargo xtask web --serve` puts beside the page. */
const SMOLLM2 = "smollm2.gguf";
const SLIDERS = ["temperature", "topK", "topP", "minP", "maxTokens"];

const $ = (id) => document.getElementById(id);
const asked = new URLSearchParams(location.search);

let model, session, place, hasTemplate = true, aborter;
let messages = [];

/** The text of an error for a visitor, as a sentence. */
function sentence(error) {
  const text = error?.message ?? String(error);
  return `${text[0]?.toUpperCase() ?? ""}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

function size(bytes) {
  if (bytes < 1e5) return `${(bytes / 1e3).toFixed(0)} kB`;
  return bytes < 1e9 ? `${(bytes / 1e6).toFixed(bytes < 1e7 ? 1 : 0)} MB` : `${(bytes / 1e9).toFixed(1)} GB`;
}

function count(n) {
  return n < 1e6 ? `${Math.round(n / 1e3)} thousand` : n < 1e9 ? `${(n / 1e6).toFixed(0)} million` : `${(n / 1e9).toFixed(1)} billion`;
}

/** Enables the controls that can be used now, depending on whether a model is loaded and whether it answers. */
function enable() {
  const [ready, answering] = [Boolean(session), Boolean(aborter)];
  $("text").disabled = !ready;
  $("send").disabled = !ready || answering;
  $("stop").disabled = !answering;
  $("clear").disabled = !ready || answering || $("log").childElementCount === 0;
  for (const id of ["smollm2", "file", "device"]) $(id).disabled = answering;
}

function forget() {
  messages = [];
  $("log").replaceChildren();
  for (const id of ["rate", "answer-status", "trouble"]) $(id).textContent = "";
}

/** The load in progress; a later one replaces it. */
let attempt;

async function load(source, name) {
  attempt?.abort();
  const own = attempt = new AbortController();
  model?.close();
  [model, session] = [undefined, undefined];
  forget();
  enable();
  $("problem").textContent = "";
  $("status").textContent = `Loading ${name} …`;
  $("loading").hidden = false;
  $("progress").value = 0;
  $("loaded").textContent = "";
  delete document.body.dataset.model;
  let made, planned = false;
  const progress = ({ loaded, total, cached, plan }) => {
    if (attempt !== own) return;
    $("progress").value = total ? loaded / total : 0;
    $("loaded").textContent = `${size(loaded)} of ${size(total)}${cached ? ", cached from an earlier visit" : ""}`;
    if (plan && !planned) {
      planned = true;
      $("status").textContent = `Loading ${name}: ${memory(plan)}`;
      if (plan.problem && navigator.gpu) $("gpu").textContent = `${sentence(plan.problem)} The model runs on the CPU.`;
    }
  };
  try {
    made = await Model.load(source, {
      progress, signal: own.signal, device: navigator.gpu ? $("device").value : "cpu", software: asked.get("software") === "on", cache: true,
    });
    const begun = await made.session();
    // The router may choose another placement than the one that has the weights.
    const { chosen } = await begun.explain();
    own.signal.throwIfAborted();
    [model, session, hasTemplate, place] = [made, begun, true, chosen];
    $("status").textContent = `${name} is ready on ${place}: ${memory(made.plan)}`;
    document.body.dataset.model = "ready";
    enable();
    $("text").focus();
  } catch (error) {
    made?.close();
    if (attempt !== own) return;
    $("status").textContent = "No model is loaded.";
    if (error.name !== "AbortError") $("problem").textContent = `${name} was not loaded. ${sentence(error)}`;
    document.body.dataset.model = "failed";
  } finally {
    if (attempt === own) {
      $("loading").hidden = true;
      attempt = undefined;
    }
    enable();
  }
}

function memory({ architecture, parameters, weights, cache, context }) {
  return `${architecture}, ${count(parameters)} weights in ${size(weights)}, and ${size(cache)} for the keys and values of ${Math.min(context, 4096)} tokens.`;
}

/** Adds a message to the log. Returns the element of its text. */
function entry(who, kind) {
  const message = document.createElement("article");
  message.className = kind;
  const [by, text] = [document.createElement("h3"), document.createElement("p")];
  by.textContent = who;
  message.append(by, text);
  $("log").append(message);
  return text;
}

/** Adds an element for the thinking and tool calls of a model above its answer. */
function thoughts(answer) {
  const text = document.createElement("p");
  text.className = "thinking";
  answer.before(text);
  return text;
}

function sampling() {
  const chosen = Object.fromEntries(SLIDERS.map((id) => [id, Number($(id).value)]));
  return $("seed").value === "" ? chosen : { ...chosen, seed: Number($("seed").value) };
}

/** Shows an error of the session `own`, unless another one has replaced it. Closes a model that cannot continue. */
function fail(own, error) {
  if (session !== own) return;
  $("trouble").textContent = `${sentence(error)}${error.code === "context-full" ? " Begin a new conversation." : ""}`;
  if (["device-lost", "module"].includes(error.code)) {
    model.close();
    [model, session] = [undefined, undefined];
    $("status").textContent = "No model is loaded. Load it again.";
    enable();
  }
}

async function answer(text) {
  const own = session;
  aborter = new AbortController();
  enable();
  $("trouble").textContent = "";
  $("rate").textContent = $("answer-status").textContent = "Reading the message …";
  const log = $("log");
  log.setAttribute("aria-busy", "true");
  entry("You", "person").textContent = text;
  messages.push({ role: "user", content: text });
  const out = entry("Model", "model");
  let made = 0, first, reply = "", before, thinking, trouble;
  const rate = () => (made > 1 ? `, ${((made - 1) / ((performance.now() - first) / 1000)).toFixed(1)} a second` : "");
  try {
    const progress = ({ computed, total }) => {
      if (computed < total) $("rate").textContent = `Reading the message … ${Math.floor((100 * computed) / total)} %`;
    };
    const options = { signal: aborter.signal, progress, ...sampling() };
    let tokens;
    for (;;) {
      // A model without a chat template continues the text of the visitor.
      if (!hasTemplate) before = (await session.tokens()).length;
      tokens = hasTemplate ? session.chat(messages, options) : session.generate(text, options);
      try {
        for await (const { text, channel = "answer" } of tokens) {
          first ??= performance.now();
          made += 1;
          const low = log.scrollHeight - log.scrollTop - log.clientHeight < 40;
          if (channel === "answer") {
            reply += text;
            out.textContent = reply;
          } else {
            thinking ??= thoughts(out);
            thinking.textContent += text;
          }
          if (low) log.scrollTop = log.scrollHeight;
          $("rate").textContent = `${made} token${made === 1 ? "" : "s"}${rate()}, on ${place}`;
        }
        break;
      } catch (error) {
        if (error.code !== "template" || !hasTemplate || !/has no chat template/.test(error.message)) throw error;
        hasTemplate = false;
        $("status").textContent += " It has no chat template, so it continues your text.";
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") trouble = error;
  }
  if (reply) messages.push({ role: "assistant", content: reply });
  else {
    // The conversation goes on without the message; the thinking stays on the page.
    messages.pop();
    if (before !== undefined) await session.truncate(before).catch((error) => { trouble ??= error; });
    if (!made) out.closest("article").remove();
  }
  if (trouble) fail(own, trouble);
  $("rate").textContent = made ? `${made} token${made === 1 ? "" : "s"}${rate()}, on ${place}${aborter.signal.aborted ? "; stopped" : ""}` : "";
  // A screen reader announces the status once; the rate changes with every token.
  $("answer-status").textContent = $("rate").textContent;
  log.setAttribute("aria-busy", "false");
  aborter = undefined;
  enable();
  if (session) await explain().catch((error) => fail(own, error));
  document.body.dataset.answered = String(Number(document.body.dataset.answered ?? 0) + 1);
  $("text").focus();
}

async function explain() {
  const { why, chosen, predictions } = await session.explain();
  place = chosen;
  $("why").textContent = /[.!?]$/.test(why) ? why : `${why}.`;
  $("places").tBodies[0].replaceChildren(...predictions.map(({ place, seconds }) => {
    const row = document.createElement("tr");
    row.classList.toggle("chosen", place === chosen);
    const [name, time] = [document.createElement("th"), document.createElement("td")];
    name.scope = "row";
    name.textContent = place;
    time.className = "number";
    time.textContent = `${(seconds * 1e3).toPrecision(3)} ms`;
    row.append(name, time);
    return row;
  }));
}

for (const id of SLIDERS) {
  const show = () => { $(`${id}-value`).textContent = id === "topK" && $(id).value === "0" ? "all" : $(id).value; };
  $(id).addEventListener("input", show);
  show();
}
$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text || !session || aborter) return;
  $("text").value = "";
  answer(text);
});
$("text").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
});
$("stop").addEventListener("click", () => aborter?.abort());
$("cancel").addEventListener("click", () => attempt?.abort());
$("clear").addEventListener("click", () => {
  const own = session;
  forget();
  // Without a chat template a session continues after its tokens.
  own.truncate(0).catch((error) => fail(own, error));
  enable();
  $("text").focus();
});
$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  if (file) load(file, file.name);
});
$("smollm2").addEventListener("click", () => load(SMOLLM2, "SmolLM2"));
const drop = $("drop");
for (const [type, over] of [["dragenter", true], ["dragover", true], ["dragleave", false], ["drop", false]]) {
  drop.addEventListener(type, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", over);
    const [file] = type === "drop" && !aborter ? event.dataTransfer.files : [];
    if (file) load(file, file.name);
  });
}

if (!navigator.gpu) {
  $("gpu").textContent = "This browser has no WebGPU: models run on the CPU, which is fast enough for small models only.";
  $("device").querySelector('[value="gpu"]').disabled = true;
}
const served = await fetch(SMOLLM2, { method: "HEAD" }).catch(() => undefined);
if (served?.ok) {
  $("smollm2").textContent = `Load SmolLM2 (${size(Number(served.headers.get("content-length")))})`;
  $("smollm2").hidden = false;
}
enable();
// For the console of the browser, and for the tests.
window.kiln = { Model };
document.body.dataset.ready = "true";
