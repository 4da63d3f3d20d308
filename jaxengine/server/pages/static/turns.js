// How a turn of a conversation looks. What its buttons do is told by whoever shows it.
import { chosen } from "./conversations.js";
import { copy, h } from "./dom.js";
import { markdown } from "./markdown.js";
import { tokenList } from "./tokens.js";

const FINISHES = { length: "ended at the most tokens", tool_calls: "asks for tools", stopped: "stopped", content_filter: "filtered" };

const button = (text, act, label) => h("button", { type: "button", class: "quiet", onclick: act, "aria-label": label }, text);

/**
 * The element of a turn. `acts` are functions: `edit(text)`, `again()`, `choose(number)`, `tools(results)`; where one is missing
 * its button is, too.
 */
export function turnView(turn, acts) {
  if (turn.role === "assistant") return assistantView(turn, acts);
  const body = h("div", { class: "body" }, turn.text, ...(turn.files ?? []).map(fileView));
  const view = h("article", { class: `turn ${turn.role}`, "aria-label": turn.role === "user" ? "You" : `Result of ${turn.name}` });
  const edit = acts.edit && button("Edit", () => view.replaceChildren(editor(turn.text, acts.edit, () => view.replaceWith(turnView(turn, acts)))), "Edit this message");
  view.append(h("header", {}, turn.role === "user" ? "You" : `Result of ${turn.name}`), body, h("footer", {}, edit));
  return view;
}

/** A file that a message holds. */
export function fileView({ kind, name, url }) {
  return kind === "image" ? h("img", { src: url, alt: name }) : h("audio", { src: url, controls: true, "aria-label": name });
}

function editor(text, save, cancel) {
  const field = h("textarea", { "aria-label": "Your message", rows: 3 });
  field.value = text;
  const form = h(
    "form",
    {
      class: "edit",
      onsubmit: (event) => {
        event.preventDefault();
        save(field.value);
      },
    },
    field,
    h("div", {}, h("button", { class: "main" }, "Send again"), h("button", { type: "button", onclick: cancel }, "Cancel")),
    h("p", { class: "soft small" }, "What followed this message is replaced."),
  );
  field.addEventListener("keydown", (event) => {
    if (event.key === "Escape") cancel();
    else if (event.key === "Enter" && !event.shiftKey) form.requestSubmit();
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  queueMicrotask(() => field.focus());
  return form;
}

function assistantView(turn, acts) {
  const answer = chosen(turn);
  const view = h("article", { class: "turn assistant", "aria-label": "Answer" }, h("header", {}, turn.model ?? "Answer", pager(turn, acts)));
  const body = h("div", { class: "body" });
  view.append(answerParts(answer, body, acts));
  const tokens = answer.tokens?.length
    ? button("Tokens", (event) => {
        const shows = event.currentTarget.getAttribute("aria-pressed") !== "true";
        event.currentTarget.setAttribute("aria-pressed", String(shows));
        body.replaceChildren(shows ? tokenList(answer.tokens) : markdown(answer.text));
        view.scrollIntoView({ block: "nearest" });
      })
    : null;
  tokens?.setAttribute("aria-pressed", "false");
  view.append(
    h(
      "footer",
      {},
      acts.again && button("Another answer", acts.again),
      answer.text ? button("Copy", (event) => copy(answer.text, event.currentTarget), "Copy this answer") : null,
      tokens,
      h("span", { class: "soft small figures" }, figures(answer)),
    ),
  );
  return view;
}

function answerParts(answer, body, acts) {
  const parts = document.createDocumentFragment();
  if (answer.thoughts) {
    const title = answer.text || answer.finish ? "Thoughts" : "Thinking…";
    parts.append(h("details", { class: "thoughts" }, h("summary", { class: "soft" }, title), h("div", { class: "soft" }, answer.thoughts)));
  }
  body.append(markdown(answer.text));
  parts.append(body, ...answer.calls.map(callView));
  if (answer.calls.length && acts.tools) parts.append(resultsForm(answer.calls, acts.tools));
  if (answer.problem) parts.append(h("p", { class: "problem", role: "alert" }, answer.problem));
  return parts;
}

function pager(turn, acts) {
  const count = turn.answers.length;
  if (count < 2) return null;
  const step = (by, text, label) => {
    const shown = button(text, () => acts.choose(turn.chosen + by), label);
    shown.disabled = !acts.choose || !turn.answers[turn.chosen + by];
    return shown;
  };
  return h("span", { role: "group", "aria-label": "Answers" }, step(-1, "‹", "Previous answer"), ` ${turn.chosen + 1} of ${count} `, step(1, "›", "Next answer"));
}

function callView({ name, arguments: text }) {
  let shown = text;
  try {
    shown = JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    // not whole yet, or not JSON: as it came
  }
  return h("div", { class: "call" }, h("strong", {}, "Calls "), h("code", {}, name), h("pre", { tabindex: 0, "aria-label": `Arguments of ${name}` }, shown));
}

function resultsForm(calls, send) {
  const fields = calls.map((call, place) => h("textarea", { id: `result-${call.id}-${place}`, rows: 2 }));
  const rows = calls.flatMap((call, place) => [h("label", { for: fields[place].id }, `Result of ${call.name}`), fields[place]]);
  const submit = (event) => {
    event.preventDefault();
    send(calls.map(({ id, name }, place) => ({ role: "tool", id, name, text: fields[place].value })));
  };
  return h("form", { class: "edit", onsubmit: submit }, ...rows, h("div", {}, h("button", { class: "main" }, "Send results")));
}

function figures({ finish, usage, seconds, first }) {
  const parts = [];
  if (usage) parts.push(`${usage.prompt_tokens} + ${usage.completion_tokens} tokens`);
  if (first !== undefined) parts.push(`first after ${first.toFixed(2)} s`);
  if (usage && seconds > first) parts.push(`${((usage.completion_tokens - 1) / (seconds - first)).toFixed(1)} tokens/s`);
  if (FINISHES[finish]) parts.push(FINISHES[finish]);
  return parts.join(" · ");
}
