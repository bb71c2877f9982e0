// What is live, whether it is healthy, what it is doing.

import { at, badge, element, keep, details, say } from "./dom.js";
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

// Read out when its words change, and not at each second that it counts.
function showHealth(said) {
  say(at("health"), said);
  const readOut = at("health-heard");
  if (words.timeless(readOut.textContent) !== words.timeless(said)) say(readOut, said);
}

// The state in one sentence, as in `hotreload status`, and the next command to type.
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

let shown = new Map();  // the words beside each name, and their element

// An unchanged fact keeps its element: the user may be selecting its text.
function showFacts(rows) {
  shown = new Map(rows.map((row) => {
    const key = row.tone === "bad" ? `${row.name} ${row.words}` : row.name;  // troubles share their name
    const old = shown.get(key);
    return [key, old?.words === row.words ? old : { words: row.words, node: fact(row) }];
  }));
  keep(at("facts"), [...shown.values()].map(({ node }) => node));
}

// Faults that the operator must mend come first, at full width.
function facts(rows) {
  const here = rows.filter((row) => !ELSEWHERE.has(row.name) && !("share" in row));
  const [wrong, others] = [[], []];
  for (const row of here) (row.tone === "bad" ? wrong : others).push(row);
  return [...wrong, ...others];
}

function fact({ name, words: said, tone, whole }) {
  const value = whole === undefined ? wordsOf(said) : [abbreviation(said, whole)];
  return element("div", { "data-tone": tone, class: said.length > LONG ? "long" : null },
    element("dt", {}, words.capitalized(name)), element("dd", {}, ...value));
}

// The daemon's words; each time stamp becomes how long ago it was.
function wordsOf(said) {
  return words.pieces(words.people(said)).map((piece, place) => (place % 2 ? timeElement(piece) : piece));
}

function abbreviation(said, whole) {
  const code = element("code", {}, said);
  return said.includes(whole) ? code : details(code, element("code", {}, whole));
}

// An element with how long ago a moment was, and its exact time as a title; `tick` updates it.
export function timeElement(stamp) {
  const title = words.exact(stamp);
  return element("time", { datetime: stamp, title }, words.ago(stamp));
}

export function tick() {
  for (const time of document.querySelectorAll("time")) {
    say(time, words.ago(time.dateTime));
  }
}
