// The checkpoints that were refused last, a line each, which opens to all that was found.

import { at, element, details, say } from "./dom.js";
import { timeElement } from "./now.js";
import * as words from "./words.js";

const NEWEST = 3;
let drawn = "";

export function showRefused(refused) {
  const now = JSON.stringify(refused);
  if (now === drawn) return;
  drawn = now;
  at("refused").hidden = !refused.length;
  at("refusals").replaceChildren(...refused.slice(0, NEWEST).map(line));
  const more = refused.length - NEWEST;
  at("refused-more").hidden = more <= 0;
  say(at("refused-more"), `and ${more} more, with all attempts in the history`);
}

function line({ at: moment, reason, findings, ...refusal }) {
  const said = element("span", {}, timeElement(moment), " ",
    element("strong", {}, words.named(refusal)), " ", reason);
  const more = findings.filter((finding) => !reason.includes(finding));
  const list = element("ul", {}, ...more.map((finding) => element("li", {}, finding)));
  return element("li", {}, details(said, element("code", {}, refusal.revision), list));
}
