// How numbers, times and revisions are written for people. Knows no document.

export const PHASES = [
  "fetching", "validating", "staging", "building", "warming", "draining", "swapping", "probing", "rolling_back",
];

export const spoken = (name) => name.replaceAll("_", " ");

// Figures: digit by digit as hotreload/figures.py writes them; a test compares the two.

export function duration(seconds) {
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  return seconds < 5970 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function ago(stamp, now = Date.now()) {
  const seconds = (now - Date.parse(stamp)) / 1000;
  const unit = UNITS.find(([size]) => seconds >= size);
  return unit ? `${Math.floor(seconds / unit[0])} ${unit[1]} ago` : "just now";
}

// The moment in the reader's own time zone, with the zone's name, to the second.
export function exact(stamp) {
  return new Date(stamp).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
}

export function size(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (bytes >= 999.5 && at < units.length - 1) {
    bytes /= 1000;
    at += 1;
  }
  return `${bytes.toFixed(at && bytes < 99.5 ? 1 : 0)} ${units[at]}`;
}

export function percent(share) {
  const number = share * 100;
  if (0 < number && number < 0.001) return "less than 0.001 %";
  if (number >= 1e6) return "over 1000000 %";
  return number >= 9.95 ? `${number.toFixed(0)} %` : `${Number(number.toPrecision(2))} %`;
}

export const short = (id) => (id ?? "").slice(0, 12);

// A revision as people know it.
export function named(fields) {
  return fields.label || short(fields.revision) || "nothing";
}

// Which step of a start runs, for how long, how long it took last time, and how far it is.
export function booting({ doing, step_seconds: took, usual_seconds: usual, done, total, unit }) {
  const last = usual === null ? "" : ` (${duration(usual)} last time)`;
  const far = unit === "bytes" ? `${size(done)} of ${size(total)}` : `${done} of ${total} ${unit}`;
  return `${doing}, for ${duration(took)}${last}${total ? `, ${far}` : ""}`;
}

// One of several engines: what it serves, or what became of it.
export function replica({ index, state, generation, gate, reason }) {
  const serving = `generation ${generation}, ${gate.inside} inside`;
  return `${index} ${state}${state === "serving" ? `: ${serving}` : reason ? `: ${reason}` : ""}`;
}

// Which of the hosts of one engine this is, and who decides.
export function rank({ own, of, leader }) {
  return `${own} of ${of}${own ? `; rank 0, met at ${leader},` : ","} decides and answers`;
}

export function count(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;
}

// How many leaves a checkpoint changed, and which of them most.
export function drift(loading) {
  const { leaves_changed: changed, most_changed: most, largest_change: by } = loading;
  const all = loading.leaves_staged + loading.leaves_shared;
  const much = by === null ? "" : ` by ${percent(by)}`;
  return `${changed} of ${count(all, "leaf", "leaves")} changed${most ? `, most: ${most}${much}` : ""}`;
}

export function loaded(loading) {
  const why = loading.loader_reason ? ` (${loading.loader_reason})` : "";
  return `by ${loading.loader === "own" ? "our own" : "upstream's"} loader${why}: ${drift(loading)}`;
}

export function total(attempt) {
  return Object.values(attempt.phases).reduce((sum, seconds) => sum + seconds, 0);
}

const TONES = {
  serving: "good", following: "good", live: "good", passed: "good",
  reloading: "wait", booting: "wait", stopping: "wait", postponed: "wait", superseded: "dim",
  rejected: "bad", lost: "bad",
};

// What a state or an outcome means, as a colour that always stands beside its word.
export const tone = (word) => TONES[word] ?? "dim";

// A rollback is told as one; what the probe rejects was never rolled back to or from.
export function outcomeWords(attempt) {
  const isRollback = attempt.outcome === "live" && attempt.by?.verb === "rollback";
  if (isRollback) return "rolled back";
  return attempt.dry_run ? `${attempt.outcome}, dry run` : attempt.outcome;
}

// Who asked for it, and why; nobody did where the source wished it.
export function asked({ by }) {
  if (!by) return "";
  return `${by.verb} by uid ${by.uid} (pid ${by.pid})${by.reason ? `: ${by.reason}` : ""}`;
}

// Which weights a rollback left.
export function left(attempt) {
  const from = outcomeWords(attempt) === "rolled back" && attempt.replaced;
  return from ? `from ${named(from)}, generation ${from.generation}` : "";
}
