// A document without a browser: it holds what the page's modules make, and writes it down as text.
// Takes the page's folder; reads scenes from stdin, [name, {status, history, leaves}], and prints
// for each which parts of the page say something else than before.

import { readFileSync } from "node:fs";

class Node {
  kids = [];
  dataset = {};
  classList = { toggle() {} };
  attributes = {};
  hidden = false;
  value = "";

  constructor(name) {
    this.name = name;
    this.tBodies = name === "table" ? [this] : [];
  }
  get children() { return this.kids.filter((kid) => kid instanceof Node); }
  get textContent() { return this.kids.map((kid) => kid.textContent ?? kid).join(""); }
  set textContent(text) { this.kids = text === "" ? [] : [text]; }
  setAttribute(name, value) {
    if (name.startsWith("data-")) this.dataset[name.slice(5)] = value;
    else this.attributes[name] = value;
  }
  insertBefore(kid, before) {
    kid.remove?.();
    if (kid instanceof Node) kid.parent = this;
    this.kids.splice(before ? this.kids.indexOf(before) : this.kids.length, 0, kid);
  }
  append(...kids) { for (const kid of kids) this.insertBefore(kid, null); }
  replaceChildren(...kids) {
    this.kids = [];
    this.append(...kids);
  }
  remove() {
    if (this.parent) this.parent.kids = this.parent.kids.filter((kid) => kid !== this);
  }
  addEventListener() {}
}

const page = process.argv[2];
const index = readFileSync(`${page}/index.html`, "utf8");
const parts = new Map([...index.matchAll(/<(\w+)[^>]* id="([\w-]+)"/g)]
  .map(([, name, id]) => [id, new Node(name)]));
globalThis.document = {
  getElementById: (id) => parts.get(id),
  createElement: (name) => new Node(name),
  createElementNS: (_, name) => new Node(name),
  querySelectorAll: () => [],
};

const ROWS = new Set(["tr", "li", "div", "g"]);  // each on a line of its own
const CELLS = new Set(["td", "dt", "summary", "span", "title"]);

function written(node) {
  if (!(node instanceof Node)) return String(node);
  if (node.hidden) return "";
  const inside = node.kids.map(written).join("");
  const said = [node.dataset.state, node.dataset.tone].filter((word) => word).join(" ");
  const text = said ? `{${said}: ${inside}}` : inside;
  const after = ROWS.has(node.name) ? "\n" : CELLS.has(node.name) ? " | " : "";
  return `${text}${after}`;
}

const [now, attempt, refused, changed, tables, charts] = await Promise.all(
  ["now", "attempt", "refused", "changed", "tables", "charts"].map((name) => import(`${page}/${name}.js`)));
let before = new Map();
for (const [name, { status, history, leaves }] of JSON.parse(readFileSync(0, "utf8"))) {
  now.showNow(status, []);
  attempt.showAttempt(status);
  refused.showRefused(status.refused);
  changed.showChanged(history);
  charts.showCharts(history);
  tables.showTables(history, leaves);
  parts.set("title", Object.assign(new Node("title"), { kids: [document.title] }));
  const shown = new Map([...parts].map(([id, node]) =>
    [id, [node.attributes["aria-label"], written(node)].filter((text) => text).join("\n")]));
  console.log(`=== ${name} ===`);
  for (const [id, text] of shown) {
    if (text !== (before.get(id) ?? "")) console.log(`#${id}: ${text || "(nothing)"}`);
  }
  before = shown;
}
