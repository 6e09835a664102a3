// Compares every operation with the f64 reference, on each placement, in this browser.

import { verifiable } from "./kiln.js";
import { sentence } from "./text.js";

const $ = (id) => document.getElementById(id);

/** Elements of the largest case, and every how many cases one runs. */
const WHOLE = [5000, 1];
/** A software GPU takes a second to compile some kernels: the least number for which every operation has a case, and a sample. */
const IN_SOFTWARE = [64, 8];

function cell(tag, text, number = false) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (tag === "th") element.scope = "col";
  element.classList.toggle("number", number);
  return element;
}

export function verification(engine) {
  const [button, progress] = [$("verify-run"), $("verify-progress")];
  const table = $("verify-table");

  async function run() {
    // The first use creates the cases, which takes a moment: let the button show that it was pressed.
    await new Promise((resolve) => setTimeout(resolve, 50));
    const names = await verifiable();
    const places = engine.places;
    progress.hidden = false;
    $("verify-summary").textContent = "";
    progress.max = names.length;
    const head = document.createElement("tr");
    head.append(cell("th", "operation"), cell("th", "cases", true), ...places.map((place) => cell("th", place.name, true)), cell("th", "bound"));
    table.caption.textContent = "Worst error, in the unit of the bound";
    table.tHead.replaceChildren(head);
    table.tBodies[0].replaceChildren();
    let [cases, failures] = [0, []];
    for (const [done, name] of names.entries()) {
      progress.value = done;
      $("verify-current").textContent = `${name}, ${done + 1} of ${names.length} …`;
      const results = [];
      for (const place of places) {
        try {
          results.push(await engine.verify(name, place.name, ...(place.software ? IN_SOFTWARE : WHOLE)));
        } catch (error) {
          results.push({ cases: 0, worst: NaN, bound: "", failures: [sentence(error)] });
        }
        await new Promise((resolve) => setTimeout(resolve));
      }
      const row = document.createElement("tr");
      const title = cell("th", name);
      title.scope = "row";
      row.append(title, cell("td", String(results[0].cases), true));
      for (const [i, { cases: count, worst, failures: wrong }] of results.entries()) {
        cases += count;
        failures.push(...wrong.map((why) => `${places[i].name}: ${why}`));
        const shown = cell("td", wrong.length ? `${wrong.length} wrong` : worst.toFixed(2), true);
        shown.classList.add(wrong.length ? "problem" : "good");
        shown.title = wrong[0] ?? "";
        row.append(shown);
      }
      const bounds = results.map(({ bound }) => bound.replace(/\d+\.\d{3,}/, (number) => Number(number).toFixed(1)));
      // Bounds may differ on GPUs.
      const alike = bounds.every((bound) => bound === bounds[0] || bound === "");
      row.append(cell("td", alike ? bounds[0] : bounds.join(" / ")));
      table.tBodies[0].append(row);
    }
    progress.hidden = true;
    $("verify-current").textContent = "";
    const summary = $("verify-summary");
    summary.classList.toggle("problem", failures.length > 0);
    summary.textContent = failures.length
      ? `${failures.length} of ${cases} cases exceed their bounds; the first: ${failures[0]}`
      : `${names.length} operations, ${cases} cases, all within their bounds.`;
    document.body.dataset.verified = String(failures.length);
  }

  button.addEventListener("click", async () => {
    button.disabled = true;
    delete document.body.dataset.verified;
    try {
      await run();
    } catch (error) {
      $("verify-summary").textContent = `The check failed: ${sentence(error)}`;
    }
    button.disabled = false;
  });
  button.disabled = false;
  return {};
}
