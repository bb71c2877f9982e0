// What is live, whether it is healthy, what it is doing.

import { at, badge, element, keep, opening, say } from "./dom.js";
import * as words from "./words.js";

// The rows of /status that have a place of their own on the page.
const ELSEWHERE = new Set(["state", "boot", "generation", "waiting for", "phase", "last attempt",
  "refused"]);

const LONG = 60;  // letters, for which one column is too narrow

export function showNow(status, pace) {
  badge(at("state"), status.state, status.rows.find(({ name }) => name === "state").tone);
  showHeadline(status.summary);
  showHealth(`${words.capitalized(status.summary.doing)}.`);
  at("pinned").hidden = !status.pinned;
  say(at("pinned"), status.pin?.verb === "rollback" ? "held" : "pinned");
  showFacts([...facts(status.rows), ...pace]);
  document.title = `${title(status)} · hotreload`;
}

// What was shown last is not known to be so any more, so nothing here claims it.
export function showUnreachable() {
  badge(at("state"), "unreachable", "bad");
  at("headline").dataset.tone = "dim";
  at("next").hidden = true;
  showHealth("The daemon does not answer this page. Below is how it was when it last did.");
  document.title = "unreachable · hotreload";
}

// Read out when it says something else, and not at each second that it counts.
function showHealth(said) {
  say(at("health"), said);
  const heard = at("health-heard");
  if (words.timeless(heard.textContent) !== words.timeless(said)) say(heard, said);
}

// How things are in one sentence, as `hotreload status` begins, and what to type next.
function showHeadline({ words: said, next, tone }) {
  say(at("headline"), words.capitalized(said));
  at("headline").dataset.tone = tone;
  at("next").hidden = !next;
  say(at("next-command"), next ?? "");
}

function title(status) {
  const generation = status.generation === null ? "" : ` ${status.generation}`;
  return `${status.state}${generation}`;
}

let shown = new Map();  // what stands beside each name, and in which element

// A fact that stays as it is keeps its element: somebody may just be selecting it.
function showFacts(rows) {
  shown = new Map(rows.map((row) => {
    const key = row.tone === "bad" ? `${row.name} ${row.words}` : row.name;  // troubles share their name
    const old = shown.get(key);
    return [key, old?.words === row.words ? old : { words: row.words, node: fact(row) }];
  }));
  keep(at("facts"), [...shown.values()].map(({ node }) => node));
}

// What somebody must mend stands first, and across.
function facts(rows) {
  const here = rows.filter((row) => !ELSEWHERE.has(row.name) && !("share" in row));
  const [wrong, others] = [[], []];
  for (const row of here) (row.tone === "bad" ? wrong : others).push(row);
  return [...wrong, ...others];
}

function fact({ name, words: said, tone, whole }) {
  const value = whole === undefined ? told(said) : [folded(said, whole)];
  return element("div", { "data-tone": tone, class: said.length > LONG ? "long" : null },
    element("dt", {}, words.capitalized(name)), element("dd", {}, ...value));
}

// The daemon's words, with how long ago where a moment stands.
function told(said) {
  return words.pieces(words.people(said)).map((piece, place) => (place % 2 ? timed(piece) : piece));
}

function folded(said, whole) {
  const code = element("code", {}, said);
  return said.includes(whole) ? code : opening(code, element("code", {}, whole));
}

// A moment: how long ago it was, and exactly when under the mouse. `tick` keeps it true.
export function timed(stamp) {
  const title = words.exact(stamp);
  return element("time", { datetime: stamp, title }, words.ago(stamp));
}

export function tick() {
  for (const time of document.querySelectorAll("time")) {
    say(time, words.ago(time.dateTime));
  }
}
