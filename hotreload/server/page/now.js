// What is live, whether it is healthy, what it is doing.

import { at, badge, element, keep, opening, say } from "./dom.js";
import * as words from "./words.js";

export function showNow(status) {
  badge(at("state"), status.state, words.tone(status.state));
  showHeadline(status.summary);
  say(at("health"), health(status));
  at("pinned").hidden = !status.pinned;
  showFacts(facts(status));
  document.title = `${title(status)} · hotreload`;
}

// What was shown last is not known to be so any more, so nothing here claims it.
export function showUnreachable() {
  badge(at("state"), "unreachable", "bad");
  at("headline").dataset.tone = "dim";
  at("next").hidden = true;
  say(at("health"), "The daemon does not answer this page. Below is how it was when it last did.");
  document.title = "unreachable · hotreload";
}

// How things are in one sentence, as `hotreload status` begins, and what to type next.
function showHeadline({ words: said, next, tone }) {
  say(at("headline"), said.charAt(0).toUpperCase() + said.slice(1));
  at("headline").dataset.tone = tone;
  at("next").hidden = !next;
  say(at("next-command"), next ?? "");
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
  return status.pinned ? "pinned, so the source is not followed" : "nothing newer is wanted";
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
  shown = new Map(rows.map(([name, value, tone, make = String]) => {
    const key = tone === "bad" ? `${name} ${value}` : name;  // troubles share their name
    const old = shown.get(key);
    return [key, old?.value === value ? old : { value, node: fact(name, make(value), tone) }];
  }));
  keep(at("facts"), [...shown.values()].map(({ node }) => node));
}

// Name, value, the tone of what is out of order, and how the value is drawn when not as text.
function facts(status) {
  const rows = [...wrong(status)];
  if (status.generation !== null) {
    rows.push(["Live since", status.live_since, null, timed]);
    rows.push(["Revision", status.revision, null, whole]);
    rows.push(["Fingerprint", status.fingerprint, null, whole]);
  }
  if (status.loading) rows.push(["Loaded", words.loaded(status.loading)]);
  if (status.rank) rows.push(["Rank", words.rank(status.rank)]);
  if (!status.rank?.own) {
    rows.push(["Wanted", wanted(status)]);
    if (status.source) rows.push(["Source", source(status.source), status.source.stale ? "wait" : null]);
    rows.push(["Gate", `${status.gate.state}, ${status.gate.inside} inside, ${status.gate.held} held`]);
    if (status.answering?.length) rows.push(["Answering", answering(status.answering)]);
  }
  if (status.replicas?.length > 1) rows.push(["Replicas", status.replicas.map(words.replica).join("; ")]);
  if (status.mode) rows.push(["Mode", mode(status)]);
  if (status.passed_over?.length) rows.push(["Passed over", passedOver(status), "wait"]);
  if (status.refused.length) rows.push(["Refused", refused(status.refused)]);
  if (status.overruled) rows.push(["Overruled", overruled(status.overruled), "wait"]);
  return rows;
}

// What somebody must mend stands first, and across.
function* wrong({ troubles, drifted: damage, noise, state_file: kept, loader }) {
  for (const { code, message, todo } of troubles) {
    yield ["Trouble", `${code}: ${message}${todo ? `. To do: ${todo}` : ""}`, "bad"];
  }
  if (damage) yield ["Drifted", drifted(damage), "bad"];
  if (noise) yield ["Noise", "answers, and no probe judged it", "bad"];
  if (!kept.saved) yield ["Not saved", `a restart forgets what changes: ${kept.error}`, "bad"];
  if (!loader.trusted) yield ["Own loader", `switched off: ${loader.reason}`, "bad"];
}

function fact(name, value, tone) {
  return element("div", { "data-tone": tone }, element("dt", {}, name), element("dd", {}, value));
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
