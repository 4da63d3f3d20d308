// Elements without markup: nothing here parses HTML.

/** An element. Properties that begin with "on" are listeners; undefined, null and false leave an attribute out. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/** The element with an id. */
export const byId = (id) => document.getElementById(id);

/** Put a text on the clipboard, and say so on the button that was pressed. */
export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here"; // without TLS browsers refuse, except on this machine
  }
  setTimeout(() => (button.textContent = before), 1500);
}
