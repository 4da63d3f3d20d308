// Numbers over time, drawn by uPlot. A caption says what is drawn, and the last values stand in it for who does not see it.
import { h } from "./dom.js";
import { count, rate, time } from "./figures.js";

const plain = (name) => (now) => now[name];
const perSecond = (name) => (now, before) => rate(name, now, before);
const rounded = (value) => (value === null || value === undefined ? "–" : count(Math.round(value * 10) / 10));

const CHARTS = [
  { title: "Tokens a second", write: rounded, lines: [["Generated", perSecond("generated_tokens")], ["Prompt", perSecond("prompt_tokens")]] },
  { title: "Sequences", write: rounded, lines: [["Running", plain("running")], ["Waiting", plain("waiting")]] },
  { title: "First token", write: time, lines: [["Median", plain("first_token_p50")], ["95 %", plain("first_token_p95")]] },
  { title: "Between tokens", write: time, lines: [["Median", plain("between_tokens_p50")], ["95 %", plain("between_tokens_p95")]] },
  { title: "Pages", write: rounded, lines: [["Held", plain("held_pages")], ["Cached", plain("cached_pages")]] },
  { title: "Drafted tokens a second", write: rounded, lines: [["Proposed", perSecond("draft_tokens")], ["Accepted", perSecond("accepted_tokens")]] },
];
const HEIGHT = 170;

/** All charts of the points that were seen, oldest first. */
export class Charts {
  constructor(place) {
    this.place = place;
    this.points = [];
    this.figures = CHARTS.map((chart) => ({ chart, caption: h("figcaption"), box: h("div", { "aria-hidden": "true" }) }));
    place.replaceChildren(...this.figures.map(({ caption, box }) => h("figure", {}, caption, box)));
    this.#draw();
    addEventListener("themechange", () => this.#draw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#draw());
    new ResizeObserver(() => this.#fit()).observe(place);
  }

  /** Begin with what the server kept. */
  begin(points, most) {
    this.points = points;
    this.most = most;
  }

  add(point) {
    if (this.points.at(-1)?.now !== point.now) this.points = [...this.points, point].slice(-this.most); // the first was kept, too
    for (const figure of this.figures) {
      const data = this.#data(figure.chart);
      figure.plot.setData(data);
      const last = figure.chart.lines.map(([name], line) => `${name.toLowerCase()} ${figure.chart.write(data[line + 1].at(-1))}`);
      figure.caption.textContent = `${figure.chart.title}: ${last.join(", ")}`;
    }
  }

  #data({ lines }) {
    const { points } = this;
    return [points.map((point) => point.now), ...lines.map(([, value]) => points.map((point, place) => value(point, points[place - 1]) ?? null))];
  }

  #draw() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
    for (const figure of this.figures) {
      const { chart, box } = figure;
      figure.plot?.destroy();
      const series = chart.lines.map(([label], line) => ({ label, stroke: colour(`--series-${line + 1}`), width: 2, value: (_, value) => chart.write(value) }));
      const axes = [axis, { ...axis, size: 70, values: (_, values) => values.map(chart.write) }];
      figure.plot = new uPlot({ width: box.clientWidth || 400, height: HEIGHT, series: [{}, ...series], axes, scales: { y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } } }, this.#data(chart), box);
    }
  }

  #fit() {
    for (const { plot, box } of this.figures) plot.setSize({ width: box.clientWidth, height: HEIGHT });
  }
}
