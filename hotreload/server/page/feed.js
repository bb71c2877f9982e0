// Polls the daemon. An event only causes a poll at once and is not shown itself: all that is
// shown comes from /status, /history, /leaves and /metrics, so a missed event costs a moment at most.

import { answerOf, hasKey, needsKey } from "./daemon.js";

const RETRY_MS = 1000;
const QUIET_MS = 5000;  // with events: counts at the gate and a pin change without one
const BLIND_MS = 1000;  // without
const HIDDEN_MS = 30000;  // in a hidden tab, whose title still shows the state
const GIVE_UP_MS = 8000;
const QUIET_EVENTS = new Set(["source.scanned"]);

export class Feed {
  // `show` is called with {status, history, leaves, metrics}, `report` with "connected", "polling" "locked"
  // or "lost".
  constructor(show, report) {
    this.show = show;
    this.report = report;
    this.known = { status: null, history: [], leaves: null, metrics: null };
    this.seen = "";
    this.measuredAt = -QUIET_MS;
    this.isListening = false;
    this.isAsking = false;
    this.isStale = false;
  }

  start() {
    document.addEventListener("visibilitychange", () => this.turn());
  }

  // A browser has six connections to a server for all its tabs: a hidden one keeps none.
  turn() {
    clearTimeout(this.retry);
    this.source?.close();
    this.isListening = false;
    if (!document.hidden) this.listen();
    this.refresh();
  }

  // An EventSource sends no key, so with one the page polls.
  listen() {
    if (hasKey() || needsKey()) return;
    const source = this.source = new EventSource("/events");
    source.onopen = () => {
      this.isListening = true;
      this.refresh();
    };
    source.onmessage = (message) => this.receive(JSON.parse(message.data));
    source.onerror = () => {
      // A new one each time: the browser gives up for good when the answer was 503.
      source.close();
      this.isListening = false;
      this.retry = setTimeout(() => this.listen(), RETRY_MS);
      this.refresh();
    };
  }

  receive(event) {
    if (!QUIET_EVENTS.has(event.event)) this.refresh();
  }

  // Any number of calls while one is under way make one more, after it.
  async refresh() {
    this.isStale = true;
    if (this.isAsking) return;
    this.isAsking = true;
    clearTimeout(this.timer);
    while (this.isStale) {
      this.isStale = false;
      await this.ask();
    }
    this.isAsking = false;
    this.timer = setTimeout(() => this.refresh(), this.patience());
  }

  patience() {
    if (document.hidden) return HIDDEN_MS;
    return this.isListening ? QUIET_MS : BLIND_MS;
  }

  async ask() {
    try {
      const status = await get("/status");
      await this.askForMore(status);
      await this.askForMetrics();
      this.known.status = status;
      this.show(this.known);
      this.report(this.isListening ? "connected" : "polling");
    } catch {
      this.report(needsKey() ? "locked" : "lost");
    }
  }

  // History and leaves are long and change only with an attempt or a generation.
  async askForMore(status) {
    const seen = JSON.stringify([status.generation, status.live_since, status.last_attempt]);
    if (seen === this.seen) return;
    const [history, leaves] = await Promise.all([get("/history"), get("/leaves")]);
    this.known.history = history.attempts;
    this.known.leaves = leaves;
    this.seen = seen;
  }

  // A page of many lines, of which three are shown: often enough for a rate, and not by each event.
  async askForMetrics() {
    if (document.hidden || performance.now() - this.measuredAt < QUIET_MS) return;
    this.measuredAt = performance.now();
    this.known.metrics = { at: this.measuredAt, text: await (await ask("/metrics")).text() };
  }
}

const get = async (path) => (await ask(path)).json();

const ask = (path) => answerOf(path, { signal: AbortSignal.timeout(GIVE_UP_MS) });
