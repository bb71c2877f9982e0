// START HERE: joins the feed to what shows it.

import { showAttempt, tickAttempt } from "./attempt.js";
import { wireAsk } from "./ask.js";
import { showCharts } from "./charts.js";
import { showChanged } from "./changed.js";
import { at, say } from "./dom.js";
import { Feed } from "./feed.js";
import { showNow, showUnreachable, tick } from "./now.js";
import { wireKey } from "./key.js";
import { measure } from "./pace.js";
import { allowOrders, showOrders, wireOrders } from "./orders.js";
import { showRefused } from "./refused.js";
import { showTables, wireTables } from "./tables.js";
import * as words from "./words.js";

const LINKS = {
  connected: ["connected", "good"],
  polling: ["asking every second", "wait"],
  locked: ["a key is needed", "wait"],
  lost: ["connection lost, trying again", "bad"],
};
let lostAt = null;
let drawn = "";
const made = new Map();  // what each generation is called

function show({ status, history, leaves, metrics }) {
  for (const one of [...history, status]) made.set(one.generation, one);
  showNow(status, measure(metrics));
  showOrders(status, leaves);
  showAttempt(status);
  showRefused(status.refused);
  // What did not change stays as it is, with the reader's selection and open details in it.
  const now = JSON.stringify([history, leaves]);
  if (now === drawn) return;
  drawn = now;
  showChanged(history);
  showCharts(history);
  showTables(history, leaves);
}

function report(link) {
  const isLost = link === "lost";
  if (isLost && lostAt === null) showUnreachable();
  lostAt = isLost ? lostAt ?? Date.now() : null;
  document.body.classList.toggle("is-stale", isLost);
  const [said, tone] = LINKS[link];
  say(at("link-said"), said);
  at("link").dataset.tone = tone;
  showSince();
}

// Not read out: a screen reader would read the seconds again and again.
function showSince() {
  const seconds = lostAt === null ? 0 : Math.floor((Date.now() - lostAt) / 1000);
  say(at("link-since"), seconds < 1 ? "" : ` (for ${words.duration(seconds)})`);
}

const nameOf = (meta) => words.named(made.get(meta.generation) ?? meta);
wireAsk(nameOf);
wireOrders(nameOf);
wireTables();
const feed = new Feed(show, report);
feed.start();
wireKey((mayChange) => {
  allowOrders(mayChange);
  feed.turn();
});
setInterval(() => {
  if (lostAt === null) tickAttempt();
}, 100);
setInterval(() => {
  tick();
  showSince();
}, 1000);
