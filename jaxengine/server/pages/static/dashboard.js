// The dashboard: one stream of snapshots, shown as they come.
import { ApiError, call, events } from "./api.js";
import { Charts } from "./charts.js";
import { byId, h } from "./dom.js";
import { count, FIGURES, share, time } from "./figures.js";
import { GridTable } from "./grid.js";

const WAITS_S = [1, 2, 5, 10];

const state = (text, problem = false) => {
  byId("state").textContent = text;
  byId("state").classList.toggle("problem", problem);
};

const charts = new Charts(byId("charts"));
const values = FIGURES.map(([name, value, about]) => {
  const shown = h("dd", { class: "value" }, "–");
  byId("figures").append(h("div", {}, h("dt", {}, name), shown, h("dd", { class: "soft small" }, about)));
  return [shown, value];
});
let facts;
let grid;
let before = null;

function begin(told) {
  facts = told;
  before = null;
  byId("model").textContent = `${facts.model} · version ${facts.version}`;
  grid = new GridTable(byId("grid"), facts.shapes);
  charts.begin(facts.past.map((row) => Object.fromEntries(facts.series.map((name, place) => [name, row[place]]))), facts.kept);
  byId("compilations").replaceChildren(...facts.compiled.map(([when, number]) => compilation(when, number)));
  showStart();
}

function show(now) {
  for (const [shown, value] of values) shown.textContent = value(now, before);
  grid.update(now, before);
  charts.add(now);
  showPool(now);
  showEngines(now);
  if (before && now.compilations > before.compilations) byId("compilations").append(compilation(now.now, now.compilations - before.compilations));
  state(now.problem ?? (now.engines.every(({ asleep }) => asleep) ? "The engine sleeps" : "Live"), now.problem !== null);
  before = now;
}

/** A bar of parts, each with its share, and a list of the same in words. */
function stacked(parts, total) {
  const bar = h("div", { class: "stack", "aria-hidden": "true" });
  for (const { kind, size } of parts) {
    const piece = h("span", { class: kind });
    piece.style.width = `${total ? (100 * size) / total : 0}%`;
    bar.append(piece);
  }
  return [bar, h("ul", { class: "key small" }, ...parts.map(({ text }) => h("li", {}, text)))];
}

function showPool({ held_pages: held, cached_pages: cached, free_pages: free, host_blocks: blocks, host_cached_blocks: onHost }) {
  const all = held + cached + free;
  const parts = [["held", held], ["cached", cached], ["free", free]];
  byId("pool").replaceChildren(...stacked(parts.map(([kind, size]) => ({ kind, size, text: `${kind} ${count(size)} (${share(size, all)})` })), all));
  const behind = blocks ? ` Behind them ${count(onHost)} of ${count(blocks)} are on the host.` : "";
  byId("pool").append(h("p", { class: "soft small" }, `${count(all)} pages of ${facts.page_size} tokens each.${behind}`));
}

function showEngines({ engines }) {
  byId("engines").tBodies[0].replaceChildren(...engines.map(engineRow));
}

function engineRow({ rank, asleep, runs, running, waiting, usage, steps, programs }) {
  const cells = [asleep ? "asleep" : (runs ?? "idle"), count(running), count(waiting), share(usage, 1), count(steps), count(programs)];
  return h("tr", {}, h("th", { scope: "row" }, count(rank)), ...cells.map((text) => h("td", {}, text)));
}

function showStart() {
  const total = facts.start_phases.reduce((sum, [, seconds]) => sum + seconds, 0);
  const parts = facts.start_phases.map(([name, seconds]) => ({ kind: "phase", size: seconds, text: `${name} ${time(seconds)}` }));
  const ready = new Date(facts.created * 1000).toLocaleString("en-GB");
  byId("start").replaceChildren(...(total ? stacked(parts, total) : []), h("p", { class: "small" }, `Ready at ${ready}${total ? `, after ${time(total)}` : ""}.`));
}

function compilation(when, number) {
  return h("li", { class: "problem" }, `${new Date(when * 1000).toLocaleTimeString("en-GB")}: ${number} compiled`);
}

/** Follow the stream for as long as the page is open; where it breaks off, try again, later each time. */
async function follow() {
  for (let tries = 0; ; tries += 1) {
    try {
      for await (const data of events(await call("dashboard/stream"))) {
        const told = JSON.parse(data);
        if (told.facts) begin(told.facts);
        else if (told.cells) show(told);
        tries = 0;
      }
      if (!before?.problem) state("The stream has ended. Trying again…", true);
    } catch (error) {
      if (error instanceof ApiError && error.status < 500) return state(error.message, true);
      state(`${error instanceof ApiError ? error.message : "The server does not answer"}. Trying again…`, true);
    }
    const wait = WAITS_S[Math.min(tries, WAITS_S.length - 1)];
    await new Promise((resolve) => setTimeout(resolve, wait * 1000));
  }
}

follow();
