// The grid of buckets: a row for each shape, with what its steps came to.
import { h } from "./dom.js";
import { count, share, time } from "./figures.js";

const NOTHING = [0, 0, 0, 0];

/** A table body and foot that follow the snapshots. */
export class GridTable {
  constructor(table, shapes) {
    this.rows = shapes.map((shape) => ({ shape, row: h("tr") }));
    this.foot = h("tr");
    table.tBodies[0].replaceChildren(...this.rows.map(({ row }) => row));
    table.tFoot.replaceChildren(this.foot);
  }

  update(now, before) {
    const cells = this.rows.map(({ shape }) => now.cells[shape.name] ?? NOTHING);
    const seconds = cells.reduce((total, cell) => total + cell[3], 0);
    this.rows.forEach(({ shape, row }, place) => {
      const cell = cells[place];
      const steps = before ? (cell[0] - (before.cells[shape.name] ?? NOTHING)[0]) / (now.now - before.now) : null;
      row.className = now.engines.some(({ runs }) => runs === shape.name) ? "runs" : cell[0] ? "" : "idle";
      row.replaceChildren(h("th", { scope: "row" }, shape.name), ...this.#cells(shape, cell, steps, seconds));
    });
    const total = cells.reduce((sums, cell) => sums.map((value, place) => value + cell[place]), NOTHING);
    const [steps, real, padding] = total;
    const all = [count(null), count(steps), "–", "", count(real), `${count(padding)} (${share(padding, real + padding)})`, time(steps ? seconds / steps : null), "", ""];
    this.foot.replaceChildren(h("th", { scope: "row" }, "All"), ...all.map((text) => h("td", {}, text)));
  }

  #cells(shape, [steps, real, padding, spent], perSecond, seconds) {
    const mean = steps ? spent / steps : null;
    const over = mean !== null && shape.floor ? `${(mean / shape.floor).toFixed(1)} ×` : "–";
    const bar = h("span", { class: "share", "aria-hidden": "true" }, h("span"));
    bar.firstChild.style.width = `${seconds ? (100 * spent) / seconds : 0}%`;
    return [
      h("td", {}, count(shape.places)),
      h("td", {}, count(steps)),
      h("td", {}, perSecond === null ? "–" : perSecond.toFixed(perSecond < 10 ? 1 : 0)),
      h("td", {}, bar, share(spent, seconds)),
      h("td", {}, count(real)),
      h("td", {}, `${count(padding)} (${share(padding, real + padding)})`),
      h("td", {}, time(mean)),
      h("td", {}, time(shape.floor)),
      h("td", {}, over),
    ];
  }
}
