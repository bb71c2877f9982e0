// How fast answers come, from two looks at /metrics: what was counted between them.

import * as words from "./words.js";

const KEPT_MS = 60000;
// Over TCP the metrics have SGLang's names; over the socket, which `ssh -L` brings, they have ours.
const COUNTED = {
  tokens: "(?:sglang:generation_|hotreload_)tokens_total",
  streams: "(?:sglang:|hotreload_)time_to_first_token_seconds_count",
  waited: "(?:sglang:|hotreload_)time_to_first_token_seconds_sum",
};
let looks = [];  // those of the last minute, the oldest first

// The rows that `now.js` shows as facts; none of a daemon that counts nothing.
export function measure(metrics) {
  if (!metrics) return [];
  const look = { at: metrics.at };
  for (const [name, metric] of Object.entries(COUNTED)) look[name] = number(metrics.text, metric);
  if (Number.isNaN(look.tokens)) return [];
  note(look);
  return rows(looks[0], look);
}

const number = (text, metric) => Number(text.match(new RegExp(`^${metric}(?:{.*})? (\\S+)$`, "m"))?.[1]);

function note(look) {
  const newest = looks.at(-1);
  if (newest?.at === look.at) return;
  if (newest?.tokens > look.tokens) looks = [];  // another life of the daemon, which counts anew
  looks = [...looks.filter(({ at }) => look.at - at <= KEPT_MS), look];
}

function rows(from, to) {
  const seconds = (to.at - from.at) / 1000;
  const [tokens, streams] = [to.tokens - from.tokens, to.streams - from.streams];
  const first = streams && words.duration((to.waited - from.waited) / streams);
  return [
    { name: "tokens a second", words: seconds ? rate(tokens / seconds) : "being measured" },
    { name: "first token after", words: first
      ? `${first}, the mean of ${words.count(streams, "stream")}` : "no stream lately" },
  ];
}

const rate = (each) => (each && each < 10 ? each.toFixed(1) : Math.round(each).toLocaleString("en"));
