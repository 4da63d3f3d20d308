// Requests to the server that this page came from, with the key that was asked for once.
import { h } from "./dom.js";

const KEPT = "jaxengine.key";

/** Where the API is: the server of this page, with the prefix that a proxy may strip. */
export const base = new URL(".", document.baseURI).href;

/** An answer that is no success, in the server's own words. */
export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const hasKey = () => sessionStorage.getItem(KEPT) !== null;

/**
 * GET a path beneath the base, or POST a body to it. Where a key is missing or wrong the user is asked for one.
 * Throws ApiError, and what fetch throws.
 */
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEPT);
    const response = await fetch(new URL(path, base), {
      method: body === undefined ? "GET" : "POST",
      headers: { ...(body !== undefined && { "Content-Type": "application/json" }), ...(key && { Authorization: `Bearer ${key}` }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      credentials: "same-origin",
    });
    if (response.ok) return response;
    if (response.status !== 401) throw await problemOf(response);
    if (sessionStorage.getItem(KEPT) === key && !(await askForKey(key !== null))) throw await problemOf(response);
  }
}

async function problemOf(response) {
  const text = await response.text();
  try {
    return new ApiError(response.status, JSON.parse(text).error.message);
  } catch {
    return new ApiError(response.status, text.slice(0, 300) || `The server answered ${response.status}.`);
  }
}

let asking = null;

/** Ask for a key, once for all that wait for one. Resolves to whether one was given. */
function askForKey(wrong) {
  asking ??= new Promise((resolve) => {
    const field = h("input", { id: "key", type: "password", autocomplete: "off", required: true });
    const dialog = h(
      "dialog",
      { "aria-labelledby": "key-title", "aria-describedby": "key-text", onclose: () => close() },
      h(
        "form",
        { method: "dialog" },
        h("h2", { id: "key-title" }, "API key"),
        h("p", { id: "key-text", class: wrong ? "problem" : "" }, wrong ? "The server does not know this key." : "This server needs one of its keys. It is kept until this tab is closed."),
        h("label", { for: "key" }, "Key"),
        field,
        h("button", { class: "main", value: "use" }, "Use this key"),
      ),
    );
    const close = () => {
      const given = dialog.returnValue === "use" && field.value.trim();
      if (given) sessionStorage.setItem(KEPT, given);
      dialog.remove();
      asking = null;
      resolve(Boolean(given));
    };
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

/** The data of each server-sent event, as text. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      for (const block of blocks) {
        const lines = block.split("\n").filter((line) => line.startsWith("data:"));
        if (lines.length) yield lines.map((line) => line.slice(5).trimStart()).join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may be broken already
  }
}
