// The attempt in progress, phase by phase; between attempts the one that ended last.

import { at, element, say } from "./dom.js";
import { timeElement } from "./now.js";
import * as words from "./words.js";

let drawn = "";
let running = null;  // {seconds, since, node} of the phase that still runs

export function showAttempt(status) {
  showProgress(status.rows.find((row) => "share" in row));
  const { attempt, last_attempt: last } = status;
  const now = JSON.stringify([attempt, last, status.phase]);
  if (now === drawn) return;
  drawn = now;
  running = null;
  say(at("attempt-title"), attempt ? "Attempt in progress" : "Last attempt");
  at("attempt-said").replaceChildren(...said(attempt, last));
  at("phases").replaceChildren(...steps(attempt ?? last, status));
}

function said(attempt, last) {
  if (attempt) return [element("strong", {}, words.named(attempt))];
  if (!last) return ["None yet. Drop a checkpoint, and it appears here."];
  const outcome = element("span", { class: "word", "data-tone": last.told.tone }, last.told.outcome);
  const { by, notes, behaviour } = last.told;
  const without = last.not_compared && `comparison ${last.not_compared}`;
  const lines = [last.reason, by && words.people(by), ...notes, behaviour, without].filter(Boolean);
  return [element("strong", {}, words.named(last)), " ", outcome, ", ", timeElement(last.finished_at),
    ...lines.map((line) => element("span", { class: "reason" }, line))];
}

function steps(attempt, { phase: current }) {
  if (!attempt) return [];
  const entered = Object.keys(attempt.phases);
  const names = [...entered, ...(attempt.expected ?? [])];
  const failed = current || attempt.outcome === "live" ? null : lastBeforeRollback(entered);
  return names.map((name) => step(name, attempt.phases[name], { current, failed }));
}

const lastBeforeRollback = (names) => names.filter((name) => name !== "rolling_back").at(-1);

function step(name, seconds, { current, failed }) {
  const isCurrent = name === current;
  const state = isCurrent ? "current" : seconds === undefined ? "ahead" : "done";
  const took = element("span", { class: "took" }, seconds === undefined ? "–" : words.duration(seconds));
  if (isCurrent) running = { seconds, since: performance.now(), node: took };
  return element("li", { "data-state": name === failed ? "failed" : state,
    "aria-current": isCurrent ? "step" : null }, element("span", {}, words.spoken(name)), took,
  ...(name === failed ? [element("span", { class: "unseen" }, "it ended here")] : []));
}

export function tickAttempt() {
  if (!running) return;
  say(running.node, words.duration(running.seconds + (performance.now() - running.since) / 1000));
}

function showProgress(row) {
  at("progress").hidden = !row;
  if (!row) return;
  at("progress-bar").value = row.share;
  say(at("progress-words"), row.words);
}
