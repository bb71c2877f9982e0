// The only place that makes elements. Whatever comes from outside becomes text, never markup.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svgElement(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);  // strings become text nodes
  return node;
}

// Makes these the children; those that are there already are not touched.
export function keep(parent, nodes) {
  for (const child of [...parent.children]) if (!nodes.includes(child)) child.remove();
  nodes.forEach((node, place) => {
    const there = parent.children[place];
    if (there !== node) parent.insertBefore(node, there ?? null);
  });
}

// Words that open to more, with a mouse, a finger or the keyboard.
export function details(words, ...more) {
  return element("details", {}, element("summary", {}, words), ...more);
}

// Sets text only when it is another: a live region is read out again, and a selection is lost.
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function badge(node, text, tone) {
  say(node, text);
  node.dataset.tone = tone;
}
