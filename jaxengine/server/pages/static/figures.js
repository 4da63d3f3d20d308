// How numbers are written, and what two snapshots come to.

const whole = new Intl.NumberFormat("en");

/** A count, or a dash where there is none. */
export const count = (value) => (value === null || value === undefined ? "–" : whole.format(value));

/** Seconds in the unit that reads best. */
export function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 1) return `${seconds.toFixed(2)} s`;
  return seconds >= 0.001 ? `${(seconds * 1000).toFixed(1)} ms` : `${(seconds * 1e6).toFixed(0)} µs`;
}

/** A share of 0 to 1. */
export const share = (part, all) => (all ? `${((100 * part) / all).toFixed(1)} %` : "–");

/** How much a count rose in a second between two snapshots; null before there are two. */
export function rate(name, now, before) {
  return before && now.now > before.now ? Math.max(0, (now[name] - before[name]) / (now.now - before.now)) : null;
}

const perSecond = (name) => (now, before) => {
  const found = rate(name, now, before);
  return found === null ? "–" : found.toFixed(found < 10 ? 1 : 0);
};

const sum = (now, place) => Object.values(now.cells).reduce((total, cell) => total + cell[place], 0);

/** The figures of the moment: a name, what it is worth, and what it says. */
export const FIGURES = [
  ["Running", (now) => count(now.running), "Sequences that hold pages and take part in steps."],
  ["Waiting", (now) => count(now.waiting), "Sequences that wait for room in a step or in the cache."],
  ["Generated tokens/s", perSecond("generated_tokens"), "Of all sequences together, in the last second."],
  ["Prompt tokens/s", perSecond("prompt_tokens"), "Of prompts whose first token came, cached ones included."],
  ["First token", (now) => `${time(now.first_token_p50)} · ${time(now.first_token_p95)}`, "From arrival: median and 95th percentile of the last ten seconds."],
  ["Between tokens", (now) => `${time(now.between_tokens_p50)} · ${time(now.between_tokens_p95)}`, "From one token of a sequence to the next: median and 95th percentile."],
  ["Padding", (now) => share(sum(now, 2), sum(now, 1) + sum(now, 2)), "Of all token places computed since the start."],
  ["Prefix hits", (now) => share(now.prefix_hits, now.prefix_queries), "Prompt tokens that were found in the cache, of those looked up."],
  ["Accepted drafts", (now) => share(now.accepted_tokens, now.draft_tokens), "Proposed tokens that were right; a dash without speculation."],
  ["Prompt tokens", (now) => count(now.prompt_tokens), "Since the start."],
  ["Generated tokens", (now) => count(now.generated_tokens), "Since the start."],
  ["Preemptions", (now) => count(now.preemptions), "Sequences that gave up their pages and are computed again."],
  ["Unplanned compilations", (now) => count(now.compilations), "Since the engine was ready; the promise is 0."],
];
