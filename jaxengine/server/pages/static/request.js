// What is asked: the body that is sent, and the same as a curl command and as a Python program.
import { messages } from "./conversations.js";

/** Fields of OpenAI's Python client; others go into `extra_body`. */
const OPENAI = new Set(["model", "messages", "prompt", "temperature", "top_p", "n", "max_tokens", "stop", "seed", "presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "response_format", "tools", "tool_choice", "stream", "stream_options"]);

/** Where a model with a chat template is asked, and one without. */
export const endpoint = (about) => (about.chat ? "v1/chat/completions" : "v1/completions");

/** The body for the turns of a conversation. `fields` are what the settings say, in the names of chat completions. */
export function body(conversation, turns, fields, about, model) {
  const common = { model, ...fields, stream: true, stream_options: { include_usage: true } };
  if (about.chat) return { ...common, messages: messages(conversation, turns) };
  const { top_logprobs: top, logprobs, tools, tool_choice: choice, ...rest } = common;
  return { ...rest, ...(logprobs && { logprobs: top }), prompt: messages(conversation, turns).map((message) => message.content).join("") };
}

/** A command for a shell. The key is a variable of the shell's, never the one that is used here. */
export function asCurl(url, request, withKey) {
  const quoted = `'${JSON.stringify(request, null, 2).replaceAll("'", `'\\''`)}'`;
  const key = withKey ? ` \\\n  -H "Authorization: Bearer $API_KEY"` : "";
  return `curl -N ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d ${quoted}`;
}

/** A program for OpenAI's Python client. */
export function asPython(base, request, withKey) {
  const entries = Object.entries(request);
  const extra = Object.fromEntries(entries.filter(([name]) => !OPENAI.has(name)));
  const own = entries.filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${literal(value, 4)},\n`);
  if (Object.keys(extra).length) own.push(`    extra_body=${literal(extra, 4)},\n`);
  const chat = "messages" in request;
  const key = withKey ? 'os.environ["API_KEY"]' : '"none"';
  return `${withKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(`${base}v1`)}, api_key=${key})
stream = client.${chat ? "chat.completions" : "completions"}.create(
${own.join("")})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].${chat ? 'delta.content or ""' : "text"}, end="", flush=True)
`;
}

/** A value as Python writes it. */
function literal(value, indent = 0) {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = " ".repeat(indent + 4);
  const items = Array.isArray(value) ? value.map((item) => literal(item, indent + 4)) : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const line = `${open}${items.join(", ")}${close}`;
  return line.length + indent < 100 && !line.includes("\n") ? line : `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${" ".repeat(indent)}${close}`;
}
