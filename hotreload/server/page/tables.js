// The history and the leaves, as tables.

import { at, element, details, say } from "./dom.js";
import { timeElement } from "./now.js";
import * as words from "./words.js";

const FIRST_ROWS = 10;
let isLong = false;
let known = { history: [], leaves: null };

export function showTables(history, leaves) {
  known = { history, leaves };
  showHistory();
  showLeaves();
}

export function wireTables() {
  at("history-more").addEventListener("click", () => {
    isLong = !isLong;
    showHistory();
  });
  at("leaf-filter").addEventListener("input", showLeaves);
  at("leaf-changed").addEventListener("change", showLeaves);
}

const cell = (kind, ...children) => element("td", { role: "cell", class: kind }, ...children);
const none = (kind) => cell(`${kind} none`, "–");
const row = (...cells) => element("tr", { role: "row" }, ...cells);
const rows = (table, made) => at(table).tBodies[0].replaceChildren(...made);

function showHistory() {
  const { history } = known;
  at("history").classList.toggle("no-pause", !history.some((one) => one.told.held));
  rows("history", history.slice(0, isLong ? history.length : FIRST_ROWS).map(historyRow));
  at("history").hidden = !history.length;
  at("history-empty").hidden = history.length > 0;
  at("history-more").hidden = history.length <= FIRST_ROWS;
  say(at("history-more"), isLong ? "Show fewer" : `Show all ${history.length}`);
}

function historyRow(attempt) {
  const { told } = attempt;
  const outcome = element("span", { class: "word", "data-tone": told.tone }, told.outcome);
  return row(
    cell("when", timeElement(attempt.finished_at)),
    cell("label", details(words.named(attempt), element("code", {}, attempt.revision))),
    cell("outcome", outcome),
    attempt.generation === null ? none("number") : cell("number gen", String(attempt.generation)),
    cell("number took", told.took),
    told.held ? cell("number pause", told.held) : none("number pause"),
    attempt.reason || told.by || told.notes.length ? cell("why", ...why(attempt)) : none("why"),
  );
}

function why(attempt) {
  const { by, notes } = attempt.told;
  const beside = (by ? [words.people(by), ...notes] : notes).join("; ");
  if (!attempt.reason) return [beside];
  return [...reason(attempt), ...(beside ? [element("div", { class: "dim" }, beside)] : [])];
}

function reason(attempt) {
  const more = attempt.findings.filter((finding) => !attempt.reason.includes(finding));
  if (!more.length) return [attempt.reason];
  const list = element("ul", {}, ...more.map((finding) => element("li", {}, finding)));
  return [attempt.reason, details(words.count(more.length, "more finding"), list)];
}

function showLeaves() {
  const { leaves } = known;
  if (!leaves) return;
  const changed = new Set(leaves.changed);
  const text = at("leaf-filter").value.toLowerCase();
  const isShown = (path) =>
    path.toLowerCase().includes(text) && (!at("leaf-changed").checked || changed.has(path));
  const paths = Object.keys(leaves.leaves).filter(isShown);
  rows("leaves", paths.map((path) => leafRow(path, leaves, changed.has(path))));
  say(at("leaves-said"), leavesWords(leaves, paths.length));
}

function leavesWords({ leaves, changed, previous }, shown) {
  const all = Object.keys(leaves).length;
  if (!all) return "No weights are live yet.";
  const moved = previous
    ? `${changed.length} changed since generation ${previous.generation}`
    : "nothing to compare with since the daemon started";
  return `${words.count(all, "leaf", "leaves")}, ${moved}` + (shown < all ? `; ${shown} shown` : "");
}

function leafRow(path, { leaves, previous }, isChanged) {
  const before = previous?.leaves[path];
  const word = element("span", { class: "word", "data-tone": isChanged ? "wait" : "dim" },
    isChanged ? "changed" : previous ? "same" : "–");
  return row(
    cell("path", element("code", {}, path)),
    cell("number", String(leaves[path])),
    cell("number dim before", before === undefined ? "–" : String(before)),
    cell("change", word),
  );
}
