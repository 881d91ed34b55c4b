// Creates elements. Users' texts are inserted as text, never as markup.

const SVG = "http://www.w3.org/2000/svg";

/** The element with an id. */
export const get = (id) => document.getElementById(id);

/** An element with attributes, listeners (named "onclick" and the like), and children; strings become text nodes. */
export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element. */
export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((child) => child != null && child !== false));
  return element;
}

/** Announce a text to screen readers. */
export function announce(text) {
  get("announcement").textContent = text;
}

/** Show a sentence in an element, or hide the element. */
export function sentence(element, text) {
  element.textContent = text ?? "";
  element.hidden = !text;
}

/** A number with about three significant digits and a typographic minus. */
export function number(value) {
  const digits = Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : Math.abs(value) >= 1 ? 2 : 3;
  return value.toFixed(digits).replace("-", "−");
}

/** A number with its sign. */
export const signed = (value) => (value > 0 ? "+" : "") + number(value);

/** Milliseconds in a readable unit. */
export const duration = (ms) => (ms < 1000 ? `${ms < 10 ? ms.toFixed(1) : Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`);

/** Metadata as chips. */
export function chips(metadata) {
  const entries = Object.entries(metadata ?? {});
  if (!entries.length) return null;
  const shown = ([key, value]) => el("li", {}, `${key}: ${typeof value === "string" ? value : JSON.stringify(value)}`);
  return el("ul", { class: "chips", "aria-label": "Metadata" }, entries.map(shown));
}
