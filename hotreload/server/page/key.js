// The key of this tab: asked for where the daemon wants one, and what it opens.

import { answerOf, keepKey, wireDaemon } from "./daemon.js";
import { at, say } from "./dom.js";

const WANTED = "This daemon asks for a key. It is kept for this tab, until the tab is closed.";
const UNKNOWN = "The daemon does not know this key. Type it again.";
const FOR_ORDERS =
  "With an admin key this page can roll back, pin and unpin. It is kept for this tab, until the tab is closed.";

// `opened` is called with whether orders are allowed, each time that the daemon has said so.
export async function wireKey(opened) {
  wireDaemon((isUnknown) => {
    if (at("key").hidden || isUnknown) ask(isUnknown ? UNKNOWN : WANTED);
  });
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(at("key-field").value.trim());
    at("key-field").value = "";
    learn(opened);
  });
  await learn(opened);
}

async function learn(opened) {
  try {
    const found = await (await answerOf("/keys")).json();
    at("key").hidden = found.may_change || !found.admin_keys;
    if (!at("key").hidden) ask(FOR_ORDERS);
    opened(found.may_change);
  } catch {
    opened(false);
  }
}

function ask(words) {
  at("key").hidden = false;
  say(at("key-said"), words);
}
