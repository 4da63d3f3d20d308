// Conversations, kept in this browser: a list of turns, each the user's, a tool's, or the model's with all its answers.
//
//   {role: "user", text, files: [{kind, name, url}]}
//   {role: "tool", id, name, text}
//   {role: "assistant", answers: [Answer's fields], chosen}

const PREFIX = "jaxengine.conversation.";

/** A conversation that nobody has said anything in. */
export const begin = () => ({ id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "New conversation", system: "", changed: Date.now(), turns: [] });

/** All that are kept, the one that changed last first. */
export function all() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(PREFIX));
  const found = names.map((name) => read(name)).filter(Boolean);
  return found.sort((a, b) => b.changed - a.changed);
}

function read(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

/** Keep a conversation. Where the browser has no room for token probabilities they are left out; false if there is none at all. */
export function keep(conversation) {
  conversation.changed = Date.now();
  const first = conversation.turns.find((turn) => turn.role === "user");
  if (first) conversation.title = first.text.trim().slice(0, 60) || "New conversation";
  for (const without of [[], ["tokens"]]) {
    try {
      localStorage.setItem(PREFIX + conversation.id, JSON.stringify(conversation, (name, value) => (without.includes(name) ? undefined : value)));
      return true;
    } catch {
      continue; // the browser's share is full
    }
  }
  return false;
}

export const forget = (id) => localStorage.removeItem(PREFIX + id);

/** The answer of a model's turn that the conversation goes on with. */
export const chosen = (turn) => turn.answers[turn.chosen];

/** The turns as the API's messages, without an answer that is being written. */
export function messages(conversation, turns = conversation.turns) {
  const system = conversation.system.trim() ? [{ role: "system", content: conversation.system }] : [];
  return [...system, ...turns.map(message)];
}

function message(turn) {
  if (turn.role === "tool") return { role: "tool", tool_call_id: turn.id, content: turn.text };
  if (turn.role === "user") return { role: "user", content: content(turn) };
  const answer = chosen(turn);
  const calls = answer.calls.map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return { role: "assistant", content: answer.text, ...(calls.length && { tool_calls: calls }) };
}

function content({ text, files = [] }) {
  return files.length ? [...files.map(part), { type: "text", text }] : text;
}

function part({ kind, url }) {
  if (kind === "image") return { type: "image_url", image_url: { url } };
  const [, format, data] = /^data:audio\/(?:x-)?(\w+)[^,]*,(.*)$/s.exec(url) ?? [null, "wav", ""];
  return { type: "input_audio", input_audio: { data, format: format === "mpeg" ? "mp3" : format } };
}
