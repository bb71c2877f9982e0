// Phase times as stacked bars, pauses (where there were any) as dots on a log scale, and how far
// answers agreed: one column an attempt, the newest at the right. The table of the history says the same in numbers.

import { at, element, svgElement } from "./dom.js";
import * as words from "./words.js";

const COLUMNS = 30;
const WIDTH = 480;
const HEIGHT = 132;
const LEFT = 60;
const BOTTOM = 4;
const TOP = 12;
const STEP = (WIDTH - LEFT) / COLUMNS;

export function showCharts(history) {
  const attempts = history.slice(0, COLUMNS).filter((one) => words.total(one) > 0).reverse();
  const charts = [...document.querySelectorAll(".charts figure")];
  for (const chart of charts) chart.hidden = !attempts.length;
  at("charts-empty").hidden = attempts.length > 0;
  if (!attempts.length) return;
  showPhases(attempts);
  showPauses(attempts);
  showAgreement(attempts);
}

function frame(svg, label, children) {
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("aria-label", label);
  svg.replaceChildren(...children);
}

function showPhases(attempts) {
  const most = Math.max(...attempts.map(words.total));
  const scale = (seconds) => (seconds / most) * (HEIGHT - TOP - BOTTOM);
  const lines = [0, most / 2, most].map((seconds) =>
    line(HEIGHT - BOTTOM - scale(seconds), seconds ? words.duration(seconds) : "0"));
  frame(at("phase-chart"), phaseLabel(attempts),
    [...lines, ...attempts.map((one, column) => bar(one, column, attempts.length, scale))]);
  const seen = words.PHASES.filter((name) => attempts.some((one) => one.phases[name]));
  at("legend").replaceChildren(...seen.map((name) =>
    element("li", { "data-phase": name }, words.spoken(name))));
}

const left = (column, columns) => WIDTH - (columns - column) * STEP;

function bar(attempt, column, columns, scale) {
  let top = HEIGHT - BOTTOM;
  const parts = words.PHASES.filter((name) => attempt.phases[name]).map((name) => {
    const height = scale(attempt.phases[name]);
    top -= height;
    return svgElement("rect", { x: left(column, columns) + 2, y: top, width: STEP - 4, height,
      "data-phase": name });
  });
  return svgElement("g", {}, svgElement("title", {}, phaseWords(attempt)), ...parts);
}

function phaseWords(attempt) {
  const spent = words.PHASES.filter((name) => attempt.phases[name] !== undefined)
    .map((name) => `${words.spoken(name)} ${words.duration(attempt.phases[name])}`);
  return `${words.named(attempt)} (${attempt.outcome}): ${spent.join(", ")}`;
}

function phaseLabel(attempts) {
  return `Time by phase of the last ${words.count(attempts.length, "attempt")}. ` +
    `The newest: ${phaseWords(attempts.at(-1))}`;
}

function showPauses(attempts) {
  const paused = attempts.filter((one) => one.pause_seconds > 0);
  at("pauses").hidden = !paused.length;  // overlapping generations hold no request
  if (!paused.length) return;
  const logs = paused.map((one) => Math.log10(one.pause_seconds));
  const low = Math.min(-3, Math.floor(Math.min(...logs)));
  const high = Math.max(0, Math.ceil(Math.max(...logs)));
  const y = (log) => HEIGHT - BOTTOM - ((log - low) / (high - low)) * (HEIGHT - TOP - BOTTOM);
  const decades = Array.from({ length: high - low + 1 }, (_, up) => low + up);
  frame(at("pause-chart"), pauseLabel(paused), [
    ...decades.map((log) => line(y(log), words.duration(10 ** log))),
    ...marks(attempts, (one) => one.pause_seconds > 0, pauseWords,
      (one) => y(Math.log10(one.pause_seconds))),
  ]);
}

// Those of which there is something to say, each at its height, with the words for it.
function marks(attempts, isSeen, said, height) {
  return attempts.map((one, column) => (isSeen(one)
    ? svgElement("g", {}, svgElement("title", {}, said(one)),
      dot(one, left(column, attempts.length) + STEP / 2, height(one)))
    : svgElement("g")));
}

// An attempt that did not go live is a cross: colour alone would not distinguish it.
function dot(attempt, x, y) {
  const tone = attempt.told.tone;
  return attempt.outcome === "live"
    ? svgElement("circle", { cx: x, cy: y, r: 3.5, "data-tone": tone })
    : svgElement("path", { d: `M${x - 3.5} ${y - 3.5}l7 7m0 -7l-7 7`, "data-tone": tone });
}

function pauseWords(attempt) {
  return `${words.named(attempt)} (${attempt.outcome}): ${words.duration(attempt.pause_seconds)}`;
}

function pauseLabel(paused) {
  const longest = paused.reduce((one, other) =>
    (other.pause_seconds > one.pause_seconds ? other : one));
  return `Pauses of the last ${words.count(paused.length, "attempt")} that held requests, on a ` +
    `log scale. The newest: ${pauseWords(paused.at(-1))}. The longest: ${pauseWords(longest)}`;
}

// How much of their answers new weights have in common with those that were live before them.
function showAgreement(attempts) {
  const compared = attempts.filter((one) => one.behaviour);
  at("agreement").hidden = !compared.length;
  if (!compared.length) return;
  const y = (share) => HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM);
  frame(at("agreement-chart"), agreementLabel(compared), [
    ...[0, 0.5, 1].map((share) => line(y(share), words.percent(share))),
    ...marks(attempts, (one) => one.behaviour, agreementWords, (one) => y(one.behaviour.agreement)),
  ]);
}

function agreementWords(attempt) {
  const { agreement, questions } = attempt.behaviour;
  return `${words.named(attempt)} (${attempt.outcome}): ${words.count(questions, "answer")} ` +
    `agree ${words.percent(agreement)}`;
}

function agreementLabel(compared) {
  const least = compared.reduce((one, other) =>
    (other.behaviour.agreement < one.behaviour.agreement ? other : one));
  return `Agreement of the last ${words.count(compared.length, "attempt")} compared with ` +
    `what was live. The newest: ${agreementWords(compared.at(-1))}. The least: ${agreementWords(least)}`;
}

function line(y, text) {
  return svgElement("g", {},
    svgElement("line", { x1: LEFT - 4, x2: WIDTH, y1: y, y2: y }),
    svgElement("text", { x: LEFT - 8, y: y + 3.5, "text-anchor": "end" }, text));
}
