// The tokens of an answer by how likely they were, and what else might have stood in their place.
import { h } from "./dom.js";

/** Tokens beyond which an answer's are not shown one by one. */
const MOST = 4000;

let numbers = 0;

const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const shown = (token) => token.replaceAll("\n", "⏎").replaceAll(" ", "␣") || "(no text)";

/** The text of a token, with a sign where there would be nothing to point at. */
const visible = (token) => token.replaceAll("\n", "⏎\n") || "∅";

/** A list of tokens; arrow keys, the pointer and touch move from one to the next. */
export function tokenList(tokens) {
  const tip = h("div", { class: "tip small", role: "status" }, "Point at a token, or move with the arrow keys.");
  const list = h("div", { class: "tokens", role: "listbox", tabindex: 0, "aria-label": "Tokens of the answer and their probabilities" });
  const options = tokens.slice(0, MOST).map((token, place) =>
    h("span", { role: "option", id: `token-${numbers++}`, class: `token likely-${level(token.logprob)}`, "aria-selected": "false", "aria-label": `${shown(token.token)}, ${percent(token.logprob)}`, "data-place": place }, visible(token.token)),
  );
  let current = -1;
  const select = (place) => {
    if (!options[place] || place === current) return;
    options[current]?.setAttribute("aria-selected", "false");
    current = place;
    options[place].setAttribute("aria-selected", "true");
    list.setAttribute("aria-activedescendant", options[place].id);
    options[place].scrollIntoView({ block: "nearest" });
    tip.replaceChildren(describe(tokens[place]));
  };
  const moves = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
  list.addEventListener("keydown", (event) => {
    const place = { Home: 0, End: options.length - 1 }[event.key] ?? (event.key in moves ? Math.max(0, current + moves[event.key]) : null);
    if (place === null) return;
    event.preventDefault();
    select(place);
  });
  for (const kind of ["mouseover", "click"]) list.addEventListener(kind, (event) => select(Number(event.target.dataset.place ?? NaN)));
  list.append(...options);
  return h("div", { class: "token-view" }, list, tip, tokens.length > MOST ? h("p", { class: "soft small" }, `The first ${MOST} of ${tokens.length} tokens.`) : null);
}

function level(logprob) {
  const probability = Math.exp(logprob);
  return [0.9, 0.5, 0.2, 0.05].findIndex((bound) => probability >= bound) + 1 || 5;
}

function describe({ token, logprob, top }) {
  const rows = top.map(([text, value]) => h("tr", { class: text === token ? "taken" : "" }, h("td", {}, shown(text)), h("td", {}, percent(value))));
  return h("table", {}, h("caption", {}, `${shown(token)}: ${percent(logprob)}`), h("tbody", {}, ...rows));
}
