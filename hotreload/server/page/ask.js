// The box to try a prompt: one at a time, with the answer as it comes and its generation.

import { answerOf } from "./daemon.js";
import { at, say } from "./dom.js";
import * as words from "./words.js";

let underWay = null;  // the AbortController of the question that is asked
let nameOf;

// `nameOf` returns a generation's name for people.
export function wireAsk(name) {
  nameOf = name;
  at("ask").addEventListener("submit", (event) => {
    event.preventDefault();
    if (!underWay) ask(at("prompt").value, Number(at("tokens").value));
  });
  at("prompt").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    at("ask").requestSubmit();
  });
  at("stop-button").addEventListener("click", () => underWay?.abort());
}

async function ask(prompt, tokens) {
  begin();
  const began = performance.now();
  try {
    const last = await stream(prompt, tokens);
    readOut();
    say(at("answered-by"), credit(last, (performance.now() - began) / 1000));
  } catch (fault) {
    say(at("answered-by"), fault.name === "AbortError" ? "Stopped." : `No answer: ${fault.message}`);
  } finally {
    end();
  }
}

function begin() {
  underWay = new AbortController();
  at("ask-button").disabled = true;
  at("stop-button").hidden = false;
  at("answer").hidden = true;
  at("answer").ariaLive = "off";
  at("answer").ariaBusy = "true";
  say(at("answer"), "");
  say(at("answered-by"), "Waiting for the answer…");
}

// Once and whole. Were it a live region before, it would be read from its start at each word.
function readOut() {
  at("answer").ariaBusy = "false";
  at("answer").ariaLive = "polite";
  at("answer").replaceChildren(at("answer").textContent);
}

function end() {
  const hadFocus = document.activeElement === at("stop-button");
  underWay = null;
  at("answer").ariaBusy = "false";
  at("ask-button").disabled = false;
  at("stop-button").hidden = true;
  if (hadFocus) at("prompt").focus();
}

function credit(last, seconds) {
  const { meta_info: meta } = last;
  const cut = meta.finish_reason?.type === "abort" ? ` Cut off: ${meta.finish_reason.message}.` : "";
  return `Answered by generation ${meta.generation} (${nameOf(meta)}), ` +
    `${words.count(meta.completion_tokens, "token")} in ${words.duration(seconds)}.${cut}`;
}

async function stream(prompt, tokens) {
  const answer = await answerOf("/generate", {
    method: "POST",
    signal: underWay.signal,
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({
      text: prompt, stream: true, sampling_params: { temperature: 0, max_new_tokens: tokens },
    }),
  });
  let last = null;
  for await (const piece of pieces(answer.body)) {
    if (piece.error) throw new Error(piece.error.detail);
    last = piece;
    at("answer").hidden = false;
    say(at("answer"), piece.text);
  }
  if (!last) throw new Error("the stream ended before its first word");
  return last;
}

async function* pieces(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: {")) yield JSON.parse(line.slice(6));
    }
  }
}
