// The answers in which the weights compared last differ from the live ones, and the output of the
// deciding command. These texts come from models and programs: they are never markup.

import { at, element, say } from "./dom.js";
import { timeElement } from "./now.js";
import * as words from "./words.js";

export function showChanged(history) {
  const compared = history.find((one) => one.behaviour?.worst.length || one.command_said?.length);
  at("changed").hidden = !compared;
  if (!compared) return;
  at("changed-said").replaceChildren(...headline(compared));
  at("pairs").replaceChildren(...(compared.behaviour?.worst ?? []).map(pair));
  at("command").hidden = !compared.command_said?.length;
  say(at("command-said"), (compared.command_said ?? []).join("\n"));
}

function headline({ told, finished_at: moment, ...attempt }) {
  const outcome = element("span", { class: "word", "data-tone": told.tone }, told.outcome);
  return [element("strong", {}, words.named(attempt)), " ", outcome, ", ", timeElement(moment),
    ...(told.behaviour ? [`: ${told.behaviour}`] : [])];
}

function pair({ prompt, live, new: now, why }) {
  const answers = live === now ? [["Both answer", live]] : [["Before", live], ["New", now]];
  return element("li", {}, element("dl", {},
    entry("Prompt", prompt, element("dd", {}, element("small", {}, why))),
    ...answers.map(([name, answer]) => entry(name, answer))));
}

const entry = (name, text, ...more) => element("div", {},
  element("dt", {}, name), element("dd", {}, text || "(nothing)"), ...more);
