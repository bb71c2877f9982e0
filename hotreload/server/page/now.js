// What is live, whether it is healthy, what it is doing.

import { at, badge, element, keep, opening, say } from "./dom.js";
import * as words from "./words.js";

export function showNow(status) {
  badge(at("state"), status.state, words.tone(status.state));
  say(at("headline"), headline(status));
  say(at("health"), health(status));
  at("pinned").hidden = !status.pinned;
  showFacts(facts(status));
  document.title = `${title(status)} · hotreload`;
}

// What was shown last is not known to be so any more, so nothing here claims it.
export function showUnreachable() {
  badge(at("state"), "unreachable", "bad");
  say(at("health"), "The daemon does not answer this page. Below is how it was when it last did.");
  document.title = "unreachable · hotreload";
}

function headline(status) {
  if (status.generation === null) return "Nothing is live yet";
  return `Generation ${status.generation}: ${words.named(status)}`;
}

function title(status) {
  const generation = status.generation === null ? "" : ` ${status.generation}`;
  return `${status.state}${generation}`;
}

function health(status) {
  if (status.boot) return `Answers nobody: booting: ${words.booting(status.boot)}`;
  if (status.reasons.length) return `Answers nobody: ${status.reasons.join("; ")}`;
  if (status.rank?.own) return "Holds its part of the engine; rank 0 decides and answers.";
  const doing = status.attempt
    ? `${words.spoken(status.phase ?? "")} ${words.named(status.attempt)}`
    : status.waiting_for ? `waits for ${status.waiting_for}` : idle(status);
  return `${answers(status)}; ${doing}.`;
}

function idle(status) {
  if (status.pinned) return "pinned, so the source is not followed";
  return "nothing newer is wanted";
}

// Where generations overlap, a gate is only held for the cleaning after NaN.
function answers({ gate, mode, phase }) {
  if (gate.state !== "holding") return "Answers requests";
  const why = phase && mode !== "overlap" ? "the weights are exchanged" : "the KV pool is cleaned";
  return `Holds ${words.count(gate.held, "request")} while ${why}`;
}

let shown = new Map();  // what stands beside each name, and in which element

// A fact that stays as it is keeps its element: somebody may just be selecting it.
function showFacts(rows) {
  shown = new Map(rows.map(([name, value, make = String]) => {
    const old = shown.get(name);
    return [name, old?.value === value ? old : { value, node: fact(name, make(value)) }];
  }));
  keep(at("facts"), [...shown.values()].map(({ node }) => node));
}

// Name, value, and how the value is drawn when not as text.
function facts(status) {
  const rows = (status.troubles ?? []).map(({ message, todo }) => ["Trouble", todo ? `${message} (${todo})` : message]);
  if (status.generation !== null) {
    rows.push(["Live since", status.live_since, timed]);
    rows.push(["Revision", status.revision, whole]);
    rows.push(["Fingerprint", status.fingerprint, whole]);
  }
  if (status.loading) rows.push(["Loaded", words.loaded(status.loading)]);
  if (status.drifted) rows.push(["Drifted", drifted(status.drifted)]);
  if (status.loader?.trusted === false) rows.push(["Own loader", `switched off: ${status.loader.reason}`]);
  if (status.rank) rows.push(["Rank", words.rank(status.rank)]);
  if (!status.rank?.own) {
    rows.push(["Wanted", wanted(status)]);
    if (status.source) rows.push(["Source", source(status.source)]);
    rows.push(["Gate", `${status.gate.state}, ${status.gate.inside} inside, ${status.gate.held} held`]);
    if (status.answering?.length) rows.push(["Answering", answering(status.answering)]);
  }
  if (status.replicas?.length > 1) rows.push(["Replicas", status.replicas.map(words.replica).join("; ")]);
  if (status.mode) rows.push(["Mode", mode(status)]);
  if (status.passed_over?.length) rows.push(["Passed over", passedOver(status)]);
  if (status.refused.length) rows.push(["Refused", refused(status.refused)]);
  if (status.overruled) rows.push(["Overruled", overruled(status.overruled)]);
  if (status.noise) rows.push(["Noise", "answers, and no probe judged it"]);
  if (status.state_file?.saved === false) rows.push(["Not saved", status.state_file.error]);
  return rows;
}

function fact(name, value) {
  return element("div", {}, element("dt", {}, name), element("dd", {}, value));
}

function wanted(status) {
  if (!status.wanted) return "nothing yet";
  if (status.wanted === status.revision) return "what is live";
  return words.named({ label: status.wanted_label, revision: status.wanted });
}

function source({ kind, stale, error }) {
  return stale ? `${kind}, does not answer: ${error}` : kind;
}

// The live generation first, then those that still end what began under them.
function answering([live, ...older]) {
  const fading = older.map((one) => `, ${words.count(one.requests, "request")} still by ${one.generation}`);
  return `${words.count(live.requests, "request")} by generation ${live.generation}${fading.join("")}`;
}

function mode({ mode: name, mode_reason: why }) {
  return why ? `${name}: ${why}` : name;
}

function drifted({ leaves, leaves_total: total }) {
  const more = total > leaves.length ? `, and ${total - leaves.length} more` : "";
  return `no longer what went live: ${leaves.join(", ")}${more}`;
}

function passedOver({ passed_over: [newest], passed_over_total: total }) {
  return total > 1 ? `${newest.reason}, and ${total - 1} more` : newest.reason;
}

function refused(refusals) {
  const newest = refusals[0];
  const more = refusals.length > 1 ? ` and ${refusals.length - 1} more` : "";
  return `${words.named(newest)} (${newest.code})${more}`;
}

// What the source wishes, and who made something else live.
function overruled(by) {
  return `${words.named(by)}, by ${by.verb} of uid ${by.uid}${by.reason ? `: ${by.reason}` : ""}`;
}

function whole(id) {
  const code = element("code", {}, id);
  return words.short(id) === id ? code : opening(element("code", {}, `${words.short(id)}…`), code);
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
