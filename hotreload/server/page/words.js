// How times and counts are written for people. All else the daemon says. Knows no document.

export const PHASES = [
  "fetching", "validating", "staging", "building", "warming", "draining", "swapping", "probing", "comparing",
  "rolling_back",
];

export const spoken = (name) => name.replaceAll("_", " ");

// Digit by digit as hotreload/figures.py writes it; a test compares the two.

export function duration(seconds) {
  if (seconds < 0.9995) return `${(seconds * 1000).toFixed(0)} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  return seconds < 5970 ? `${(seconds / 60).toFixed(0)} min` : `${(seconds / 3600).toFixed(1)} h`;
}

export const percent = (share) => `${Math.round(share * 100)}%`;

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

export const short = (id) => (id ?? "").slice(0, 12);

// A revision as people know it.
export function named(fields) {
  return fields.label || short(fields.revision) || "nothing";
}

export function count(number, noun, nouns = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : nouns}`;
}

export function total(attempt) {
  return Object.values(attempt.phases).reduce((sum, seconds) => sum + seconds, 0);
}

const STAMP = /(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)/;

// The daemon's words in pieces: every second piece is a time stamp, to be shown in the reader's way.
export const pieces = (said) => said.split(STAMP);

// Only root has the same name on every machine; the CLI shows the names of other users.
export const people = (said) => said.replace(/\buid 0(?= \(pid \d)/g, "root");

// The words without times and amounts, so that a screen reader need not repeat each change.
export const timeless = (said) =>
  said.replace(/[\d.]+ (ms|s|min|h|[kMGT]?B)\b|\d+ of \d+/g, "");

export const capitalized = (said) => said.charAt(0).toUpperCase() + said.slice(1);
