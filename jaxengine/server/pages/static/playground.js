// The playground: one conversation at a time, its turns shown, what the user does carried out.
import { base, call, hasKey } from "./api.js";
import * as conversations from "./conversations.js";
import { byId, copy, h } from "./dom.js";
import { asCurl, asPython, body, endpoint } from "./request.js";
import { Settings } from "./settings.js";
import { fileView, turnView } from "./turns.js";
import { write } from "./writer.js";

const PAINT_MS = 50;
/** Share of the time that painting an answer while it comes may take. */
const PAINT_SHARE = 0.25;

/** From one try to ask a server that starts to the next. */
const WAIT_MS = 1000;

let about;
let settings;
let conversation = conversations.begin();
let running = null; // the AbortController of the request under way
let files = [];

const note = (text, problem = false) => {
  byId("note").textContent = text;
  byId("note").classList.toggle("problem", problem);
};

// --- what is shown

/** Show all turns, and the list of conversations. */
function show() {
  byId("turns").replaceChildren(...conversation.turns.map((turn, place) => turnView(turn, acts(place))));
  if (!conversation.turns.length) byId("turns").append(h("p", { class: "turn soft" }, welcome()));
  byId("system").value = conversation.system;
  showList();
  scrollDown();
}

function welcome() {
  if (!about) return "";
  if (!about.generates) return "This model writes no text: it is asked by programs, for example at /v1/embeddings.";
  return about.chat ? "Say something to the model." : "This model has no chat template: it goes on with your text as it stands.";
}

function showList() {
  const rows = conversations.all().map(({ id, title }) =>
    h(
      "li",
      {},
      h("button", { type: "button", class: "quiet open", "aria-current": id === conversation.id ? "true" : null, onclick: () => open(id) }, title),
      h("button", { type: "button", class: "quiet", "aria-label": `Delete ${title}`, onclick: () => remove(id) }, "×"),
    ),
  );
  byId("conversations").replaceChildren(...rows);
}

/** What can be done with the turn in a place: nothing while an answer comes. */
function acts(place) {
  if (running) return {};
  const turn = conversation.turns[place];
  const isLast = place === conversation.turns.length - 1;
  if (turn.role === "user") return { edit: (text) => edit(place, text) };
  if (turn.role !== "assistant") return {};
  return {
    again: () => again(place),
    choose: (number) => {
      turn.chosen = number;
      save();
      show();
    },
    ...(isLast && { tools: (results) => ask([...conversation.turns, ...results]) }),
  };
}

/** Paint the last turn while its answer comes: not at every token, and seldom where it takes long. */
function painter(turn) {
  let timer = null;
  let pause = PAINT_MS;
  return {
    changed() {
      timer ??= setTimeout(() => {
        const began = performance.now();
        timer = null;
        const follows = atBottom();
        const opened = byId("turns").lastElementChild.querySelector("details")?.open;
        const view = turnView(turn, { choose: (number) => (turn.chosen = number) });
        if (opened) view.querySelector("details").open = true;
        byId("turns").lastElementChild.replaceWith(view);
        if (follows) scrollDown();
        pause = Math.max(PAINT_MS, (performance.now() - began) / PAINT_SHARE);
      }, pause);
    },
    end: () => clearTimeout(timer),
  };
}

const atBottom = () => byId("turns").scrollHeight - byId("turns").scrollTop - byId("turns").clientHeight < 60;

function scrollDown() {
  byId("turns").scrollTop = byId("turns").scrollHeight;
}

// --- what the user does

function save() {
  if (!conversations.keep(conversation)) note("This browser has no room for the conversation: delete others to keep it.", true);
}

function open(id) {
  if (running) return note("An answer is being written: stop it first.");
  conversation = conversations.all().find((one) => one.id === id) ?? conversations.begin();
  show();
  return byId("message").focus();
}

function remove(id) {
  if (id !== conversation.id) {
    conversations.forget(id);
    return showList();
  }
  if (!running) conversations.forget(id);
  return open(null); // which says why not while an answer comes
}

function edit(place, text) {
  const turn = { ...conversation.turns[place], text };
  return ask([...conversation.turns.slice(0, place), turn]);
}

function again(place) {
  return ask(conversation.turns.slice(0, place), conversation.turns[place]);
}

/** Send `turns` and put what comes into `turn`, or into one that is added. */
async function ask(turns, turn = { role: "assistant", answers: [], chosen: 0 }) {
  if (!settings) return note("The server has not answered yet.", true);
  const { problems } = settings.read();
  const [wrong] = Object.keys(problems);
  if (running || wrong) {
    if (wrong) settings.inputs[wrong].focus();
    return note(running ? "An answer is being written: stop it first." : problems[wrong], true);
  }
  turn.model = byId("model").value;
  const request = requestOf(turns);
  running = new AbortController();
  conversation.turns = [...turns, turn];
  busy(true);
  const paint = painter(turn);
  const written = write(turn, endpoint(about), request, running.signal, paint.changed); // which adds the empty answers
  save();
  show();
  await written;
  paint.end();
  const stopped = running.signal.aborted;
  running = null;
  busy(false);
  save();
  show();
  return note(stopped ? "Stopped." : "The answer is done.");
}

function requestOf(turns) {
  return body(conversation, turns, settings.read().fields, about, byId("model").value);
}

function busy(now) {
  byId("send").hidden = now;
  byId("stop").hidden = !now;
  if (now) note("The answer is being written.");
}

function send() {
  const text = byId("message").value;
  if (!text.trim() && !files.length) return undefined;
  if (running) return note("An answer is being written: stop it first.");
  const sent = ask([...conversation.turns, { role: "user", text, files }]);
  if (!running) return sent; // a setting was wrong: the text stays
  byId("message").value = "";
  attach([]);
  return sent;
}

// --- files

function attach(list) {
  files = list;
  byId("files").replaceChildren(
    ...files.map((file) => h("li", {}, fileView(file), h("button", { type: "button", class: "quiet", "aria-label": `Remove ${file.name}`, onclick: () => attach(files.filter((one) => one !== file)) }, "×"))),
  );
}

async function readFiles(chosen) {
  const kinds = about.inputs.filter((kind) => kind !== "text");
  for (const file of chosen) {
    const kind = file.type.split("/")[0];
    if (kinds.includes(kind)) attach([...files, { kind, name: file.name, url: await dataUrl(file) }]);
    else note(`${file.name} is not for this model, which takes ${kinds.join(" and ")}.`, true);
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

// --- panels, keys, the start

function toggle(name, now = byId(name).hidden) {
  byId(name).hidden = !now;
  byId(`show-${name}`).setAttribute("aria-expanded", String(now));
}

function showRequest() {
  if (!settings) return;
  const turns = [...conversation.turns, { role: "user", text: byId("message").value || "Hello", files }];
  const request = requestOf(turns);
  byId("curl").textContent = asCurl(new URL(endpoint(about), base).href, request, hasKey());
  byId("python").textContent = asPython(base, request, hasKey());
  byId("request").showModal();
}

function lastTurn(role) {
  return conversation.turns.findLastIndex((turn) => turn.role === role);
}

const SHORTCUTS = {
  n: () => open(null),
  s: () => toggle("settings"),
  r: () => lastTurn("assistant") >= 0 && again(lastTurn("assistant")),
  e: () => byId("turns").children[lastTurn("user")]?.querySelector("footer button")?.click(),
};

function listen() {
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  byId("message").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  });
  byId("system").addEventListener("input", () => {
    conversation.system = byId("system").value;
    if (conversation.turns.length) save();
  });
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new").addEventListener("click", () => open(null));
  byId("show-list").addEventListener("click", () => toggle("list"));
  byId("show-settings").addEventListener("click", () => toggle("settings"));
  byId("show-request").addEventListener("click", showRequest);
  byId("file").addEventListener("change", (event) => readFiles(event.target.files));
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copy(byId(button.dataset.copy).textContent, button));
  document.addEventListener("keydown", (event) => {
    const act = event.altKey && !event.ctrlKey && SHORTCUTS[event.key.toLowerCase()];
    if (event.key === "Escape" && running) running.abort();
    else if (act) {
      event.preventDefault();
      act();
    }
  });
  addEventListener("pagehide", () => running && save()); // what has come of an answer by now
  byId("fields").addEventListener("submit", (event) => event.preventDefault());
}

/** What the model can do. A server whose engine starts is asked until it knows. */
async function askAbout() {
  for (;;) {
    try {
      return await (await call("playground/about")).json();
    } catch (error) {
      if (error.status !== 503) throw error;
      note(`${error.message}. This page waits.`);
      await new Promise((resolve) => setTimeout(resolve, WAIT_MS));
    }
  }
}

async function start() {
  byId("server").textContent = `at ${base}`;
  const narrow = matchMedia("(max-width: 60rem)").matches;
  toggle("list", !narrow);
  toggle("settings", !narrow);
  byId("send").disabled = true;
  listen();
  try {
    about = await askAbout();
  } catch (error) {
    return note(`The server cannot be asked: ${error.message} Load the page again to try once more.`, true);
  }
  note("");
  byId("model").replaceChildren(...about.models.map((name) => h("option", {}, name)));
  byId("attach").hidden = about.inputs.length < 2;
  byId("file").accept = about.inputs.filter((kind) => kind !== "text").map((kind) => `${kind}/*`).join(",");
  settings = new Settings(byId("fields"), about, () => note(""));
  byId("send").disabled = !about.generates;
  show();
  return byId("message").focus();
}

start();
