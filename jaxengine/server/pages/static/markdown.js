// From what a model wrote to elements, in three steps that each would do: raw HTML is text, a list of tags, the page's policy.
import { marked } from "./vendor/marked.js";
import { copy, h } from "./dom.js";

/** Characters beyond which a text is shown as it is. */
const LONGEST = 200_000;

const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ALLOWED_URI_REGEXP: /^(https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

const escaped = (text) => text.replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

marked.use({
  gfm: true,
  renderer: {
    html: ({ text }) => escaped(text),
    // A picture would be fetched from wherever the model says.
    image: ({ href, text }) => `<a href="${escaped(href)}">${escaped(text || href)}</a>`,
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
  },
});

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A" && node.hasAttribute("href")) {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
});

/** A fragment for a text in Markdown; the text itself where it is too long or too deep to be read as such. */
export function markdown(text) {
  if (text.length > LONGEST) return plain(text);
  let fragment;
  try {
    fragment = DOMPurify.sanitize(marked.parse(text), ALLOWED);
  } catch {
    return plain(text);
  }
  for (const block of fragment.querySelectorAll("pre")) block.replaceWith(codeBlock(block));
  return fragment;
}

function plain(text) {
  return h("p", { class: "plain" }, text);
}

function codeBlock(block) {
  const code = block.textContent;
  const language = /language-([\w+#.-]{1,20})/.exec(block.querySelector("code")?.className ?? "")?.[1] ?? "";
  return h(
    "div",
    { class: "code" },
    h(
      "div",
      { class: "code-head small" },
      h("span", { class: "soft" }, language),
      h("button", { type: "button", class: "quiet", onclick: (event) => copy(code, event.currentTarget) }, "Copy"),
    ),
    h("pre", { tabindex: 0, "aria-label": language ? `Code, ${language}` : "Code" }, h("code", {}, code)),
  );
}
