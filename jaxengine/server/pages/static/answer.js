// One answer while it comes: what a stream's chunks add up to.

/** An answer of which nothing has come. */
export const empty = () => ({ text: "", thoughts: "", calls: [], tokens: [], finish: null, problem: null });

/** Add one choice of a chunk of /v1/chat/completions or /v1/completions. */
export function add(answer, choice) {
  const delta = choice.delta ?? { content: choice.text };
  answer.text += delta.content ?? "";
  answer.thoughts += delta.reasoning ?? delta.reasoning_content ?? "";
  for (const { index, id, function: called = {} } of delta.tool_calls ?? []) {
    const call = (answer.calls[index] ??= { id, name: "", arguments: "" });
    call.name += called.name ?? "";
    call.arguments += called.arguments ?? "";
  }
  answer.tokens.push(...tokens(choice.logprobs));
  answer.finish = choice.finish_reason ?? answer.finish;
}

/** Tokens with their log probabilities and the likeliest ones in their place, [text, logprob], in either endpoint's form. */
function tokens(logprobs) {
  if (!logprobs) return [];
  if (logprobs.content) return logprobs.content.map(({ token, logprob, top_logprobs: top }) => ({ token, logprob, top: top.map((one) => [one.token, one.logprob]) }));
  return (logprobs.tokens ?? []).map((token, place) => ({ token, logprob: logprobs.token_logprobs[place], top: Object.entries(logprobs.top_logprobs?.[place] ?? {}) }));
}
