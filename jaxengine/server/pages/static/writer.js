// One request under way: its stream read into the answers of a turn, until it ends, breaks off or is stopped.
import { add, empty } from "./answer.js";
import { ApiError, call, events } from "./api.js";

/**
 * Add as many answers to `turn` as the request asks for, and fill them. `changed` is called after each chunk.
 * Never throws: what went wrong is the answers' `problem`.
 */
export async function write(turn, path, request, signal, changed) {
  const answers = Array.from({ length: request.n ?? 1 }, empty);
  turn.chosen = turn.answers.length;
  turn.answers.push(...answers);
  const began = performance.now();
  const since = () => (performance.now() - began) / 1000;
  let ended = false;
  try {
    for await (const data of events(await call(path, { body: request, signal }))) {
      if (data === "[DONE]") {
        ended = true;
        continue;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(chunk.error.code, chunk.error.message);
      for (const choice of chunk.choices) {
        const answer = answers[choice.index];
        add(answer, choice);
        answer.first ??= since();
        answer.seconds = since();
      }
      if (chunk.usage) answers.forEach((answer) => (answer.usage = chunk.usage));
      changed();
    }
    if (!ended) fail(answers, "The stream broke off before the answer was whole.");
  } catch (error) {
    if (signal.aborted) answers.forEach((answer) => (answer.finish ??= "stopped"));
    else if (error instanceof ApiError) fail(answers, error.message);
    else fail(answers, `The connection to the server was lost: ${error.message}`);
  }
  if (answers.length > 1) answers.forEach((answer) => delete answer.usage); // it is of all of them together
}

function fail(answers, problem) {
  for (const answer of answers) if (!answer.finish) answer.problem = problem;
}
