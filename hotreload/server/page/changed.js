// What the weights that were compared last answer otherwise than those that were live, and what the
// command that decides said of them. The texts are models' and programs': they stay text.

import { at, element, say } from "./dom.js";
import { timed } from "./now.js";
import * as words from "./words.js";

export function showChanged(history) {
  const compared = history.find((one) => one.behaviour?.worst.length || one.command_said?.length);
  at("changed").hidden = !compared;
  if (!compared) return;
  at("changed-said").replaceChildren(...said(compared));
  at("pairs").replaceChildren(...(compared.behaviour?.worst ?? []).map(pair));
  at("command").hidden = !compared.command_said?.length;
  say(at("command-said"), (compared.command_said ?? []).join("\n"));
}

function said({ told, finished_at: moment, ...attempt }) {
  const outcome = element("span", { class: "word", "data-tone": told.tone }, told.outcome);
  return [element("strong", {}, words.named(attempt)), " ", outcome, ", ", timed(moment),
    ...(told.behaviour ? [`: ${told.behaviour}`] : [])];
}

function pair({ prompt, live, new: now, why }) {
  const answers = live === now ? [["Both answer", live]] : [["Before", live], ["New", now]];
  return element("li", {}, element("dl", {},
    told("Prompt", prompt, element("dd", {}, element("small", {}, why))),
    ...answers.map(([name, answer]) => told(name, answer))));
}

const told = (name, text, ...more) => element("div", {},
  element("dt", {}, name), element("dd", {}, text || "(nothing)"), ...more);
