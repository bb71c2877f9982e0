// Rollback, pin and unpin, where the key of this tab allows them; each says first what will happen.

import { answerOf } from "./daemon.js";
import { at, say } from "./dom.js";

const ORDERS = {
  rollback: (live, before) => ({
    said: `${before} answers new requests in place of ${live}, and is held: nothing newer goes live until it is unpinned.`,
    does: "Roll back",
  }),
  pin: (live) => ({ said: `${live} stays live: nothing newer goes live until it is unpinned.`, does: "Pin" }),
  unpin: (live) => ({
    said: `${live} is no longer held: what the source wants goes live as soon as it has passed the checks.`,
    does: "Unpin",
  }),
};
let nameOf;
let known = { live: null, before: null };
let chosen = null;

// `name` returns a generation's name for people.
export function wireOrders(name) {
  nameOf = name;
  for (const verb of Object.keys(ORDERS)) at(verb).addEventListener("click", () => confirm(verb));
  at("confirm-no").addEventListener("click", () => at("confirm").close());
  at("confirm-yes").addEventListener("click", () => {
    at("confirm").close();
    send(chosen);
  });
}

export function allowOrders(areAllowed) {
  at("orders").hidden = !areAllowed;
}

export function showOrders(status, leaves) {
  known = { live: status.generation, before: leaves?.previous?.generation ?? null };
  at("rollback").hidden = known.before === null;
  at("pin").hidden = known.live === null || status.pinned;
  at("unpin").hidden = !status.pinned;
}

const spoken = (generation) => `Generation ${generation} (${nameOf({ generation })})`;

function confirm(verb) {
  const { said, does } = ORDERS[verb](spoken(known.live), spoken(known.before));
  chosen = { verb, body: verb === "rollback" ? { generation: known.before } : {} };
  say(at("confirm-said"), said);
  say(at("confirm-yes"), does);
  at("confirm").showModal();
}

async function send({ verb, body }) {
  say(at("order-said"), "Asked for; waiting for the outcome…");
  try {
    await answerOf(`/admin/${verb}`, {
      method: "POST",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ ...body, reason: "on the status page" }),
    });
    say(at("order-said"), "Done.");
  } catch (fault) {
    say(at("order-said"), `Not done: ${fault.message}`);
  }
}
