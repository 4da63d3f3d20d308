// The panel of settings: a table of fields, a form made of it, and what it comes to in a request.
import { h } from "./dom.js";

const KEPT = "jaxengine.settings";

const TOOL_EXAMPLE = JSON.stringify(
  [{ type: "function", function: { name: "get_weather", description: "The weather of a city", parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }],
  null,
  2,
);
const SCHEMA_EXAMPLE = JSON.stringify({ type: "object", properties: { name: { type: "string" }, age: { type: "integer" } }, required: ["name", "age"] }, null, 2);

const number = (name, label, about, limits) => ({ name, label, about, kind: "number", ...limits });

/** Every setting. `when` says for which models it is offered. */
const FIELDS = [
  number("temperature", "Temperature", "0 takes the likeliest token; higher is more varied.", { min: 0, step: 0.1 }),
  number("top_p", "Top p", "Only the likeliest tokens that together have this share.", { min: 0, max: 1, step: 0.05 }),
  number("top_k", "Top k", "Only so many of the likeliest tokens; 0 is all.", { min: -1, step: 1 }),
  number("min_p", "Min p", "Only tokens with this share of the likeliest one's probability.", { min: 0, max: 1, step: 0.01 }),
  number("max_tokens", "Most tokens", "The answer ends after so many.", { min: 1, step: 1 }),
  number("seed", "Seed", "The same seed gives the same answer.", { step: 1 }),
  number("n", "Answers", "How many answers are written at once.", { min: 1, step: 1 }),
  number("presence_penalty", "Presence penalty", "Against tokens that were there.", { min: -2, max: 2, step: 0.1 }),
  number("frequency_penalty", "Frequency penalty", "Against tokens by how often they were there.", { min: -2, max: 2, step: 0.1 }),
  number("repetition_penalty", "Repetition penalty", "Divides the odds of tokens that were there; 1 is none.", { min: 0, step: 0.05 }),
  { ...number("thinking_token_budget", "Thinking tokens", "Most tokens of thoughts.", { min: 0, step: 1 }), when: (about) => about.reasoning },
  { name: "stop", label: "Stop texts", about: "One a line; the answer ends before any of them.", kind: "text" },
  { name: "logprobs", label: "Token probabilities", about: "Shown where you point in an answer's tokens.", kind: "flag", when: (about) => about.max_logprobs !== 0 },
  {
    name: "form",
    label: "Form of the answer",
    about: "What the answer is made to be.",
    kind: "choice",
    choices: { text: "Any text", json_object: "Any JSON", json_schema: "JSON of a schema", regex: "Regular expression", choice: "One of these lines", grammar: "Grammar" },
  },
  { name: "form_text", label: "Schema, expression, lines or grammar", about: "Of the form above.", kind: "text", example: SCHEMA_EXAMPLE },
  { name: "tools", label: "Tools", about: "Functions that the model may ask for: a list, as OpenAI's API has it.", kind: "text", example: TOOL_EXAMPLE, when: (about) => about.chat },
  { name: "tool_choice", label: "Use of tools", about: "What the model may do with them.", kind: "choice", choices: {}, when: (about) => about.chat },
];

/** Top log probabilities that are asked for, as far as the server allows. */
const TOP = 5;

export class Settings {
  /** Build the form of a model into `place`. `changed` is called after every change. */
  constructor(place, about, changed) {
    this.about = about;
    this.fields = FIELDS.filter(({ when }) => !when || when(about));
    this.inputs = {};
    const kept = readKept();
    place.replaceChildren(...this.fields.map((field) => this.#row(field, kept[field.name])));
    place.addEventListener("input", () => {
      localStorage.setItem(KEPT, JSON.stringify(this.#values()));
      this.#showProblems();
      changed();
    });
    this.#showProblems();
  }

  #row(field, kept) {
    const id = `set-${field.name}`;
    const shared = { id, name: field.name, "aria-describedby": `${id}-about` };
    const input = this.#input(field, shared);
    if (field.kind === "flag") input.checked = kept === true;
    else if (kept !== undefined) input.value = kept;
    this.inputs[field.name] = input;
    const label = h("label", { for: id }, field.label);
    const example = field.example && h("button", { type: "button", class: "quiet", onclick: () => this.#fill(input, field.example) }, "Example");
    return h("div", { class: `setting ${field.kind}` }, label, example, input, h("p", { id: `${id}-about`, class: "soft small" }, field.about), h("p", { class: "problem small", role: "alert", id: `${id}-problem` }));
  }

  #input(field, shared) {
    if (field.kind === "text") return h("textarea", { ...shared, rows: field.example ? 4 : 2, spellcheck: "false" });
    if (field.kind === "flag") return h("input", { ...shared, type: "checkbox" });
    if (field.kind === "number") {
      const preset = this.about.defaults[field.name];
      return h("input", { ...shared, type: "number", min: field.min, max: field.max, step: field.step, placeholder: preset === undefined ? "" : `${preset}` });
    }
    const choices = field.name === "tool_choice" ? this.#toolChoices() : field.choices;
    return h("select", shared, ...Object.entries(choices).map(([value, text]) => h("option", { value }, text)));
  }

  #toolChoices() {
    const decides = this.about.auto_tools ? { auto: "The model decides" } : {};
    return { ...decides, required: "It must call one", none: "It may not call" };
  }

  #fill(input, text) {
    input.value = text;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  }

  #values() {
    return Object.fromEntries(Object.entries(this.inputs).map(([name, input]) => [name, input.type === "checkbox" ? input.checked : input.value]));
  }

  #showProblems() {
    const problems = this.read().problems;
    for (const [name, input] of Object.entries(this.inputs)) {
      const problem = problems[name] ?? "";
      input.parentElement.querySelector(".problem").textContent = problem;
      input.setAttribute("aria-invalid", String(Boolean(problem)));
      input.setAttribute("aria-describedby", `set-${name}-about${problem ? ` set-${name}-problem` : ""}`);
    }
  }

  /** `fields` of a request, in the names of chat completions, and `problems` by setting, which keep one from being sent. */
  read() {
    const fields = {};
    const problems = {};
    const values = this.#values();
    for (const { name, kind } of this.fields) {
      if (kind !== "number") continue;
      const input = this.inputs[name];
      if (!input.validity.valid) problems[name] = input.validationMessage;
      else if (input.value !== "") fields[name] = Number(input.value);
    }
    const stop = values.stop.split("\n").filter(Boolean);
    if (stop.length) fields.stop = stop;
    const most = this.about.max_logprobs;
    if (values.logprobs) Object.assign(fields, { logprobs: true, top_logprobs: most < 0 ? TOP : Math.min(TOP, most) });
    this.#readForm(values, fields, problems);
    this.#readTools(values, fields, problems);
    return { fields, problems };
  }

  #readForm({ form, form_text: text }, fields, problems) {
    if (form === "json_object") fields.response_format = { type: "json_object" };
    if (form === "regex" || form === "grammar") fields.structured_outputs = { [form]: text };
    if (form === "choice") fields.structured_outputs = { choice: text.split("\n").filter(Boolean) };
    if (form === "json_schema") {
      const schema = parsed(text, problems, "form_text");
      fields.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
    }
    if (["regex", "grammar", "choice"].includes(form) && !text.trim()) problems.form_text = "This form needs a text here.";
  }

  #readTools({ tools = "", tool_choice: choice }, fields, problems) {
    if (!tools.trim()) return;
    fields.tools = parsed(tools, problems, "tools");
    if (fields.tools && !Array.isArray(fields.tools)) problems.tools = "The tools must be a list: [ ... ].";
    fields.tool_choice = choice;
  }
}

/** The values of the last visit; none where they cannot be read. */
function readKept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT)) ?? {};
  } catch {
    return {};
  }
}

function parsed(text, problems, name) {
  try {
    return JSON.parse(text);
  } catch (error) {
    problems[name] = `This is not JSON: ${error.message}`;
    return null;
  }
}
