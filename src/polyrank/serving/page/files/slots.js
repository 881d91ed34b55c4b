// Slots of replies: values that the server filled in, and gaps such as {order}, which the agent fills.

import { el } from "./dom.js";

/** The gaps that a text still has, as they look in it. */
export function gapsIn(text, reply) {
  return Object.keys(reply?.slots ?? {}).map((name) => `{${name}}`).filter((gap) => text.includes(gap));
}

/** The text of a reply with its gaps marked, as nodes. */
export function marked(reply) {
  const gaps = gapsIn(reply.text, reply);
  if (!gaps.length) return [reply.text];
  const parts = reply.text.split(new RegExp(`(${gaps.map(escaped).join("|")})`));
  return parts.map((part, i) => (i % 2 ? el("mark", { class: "gap", title: "A gap to fill" }, part) : part));
}

/** Whether a text is a reply whose slots alone were filled. */
export function isFilled(text, reply) {
  const parts = (reply.template ?? reply.text).split(/(\{\w+\})/);
  const known = (part) => part.slice(1, -1) in (reply.slots ?? {});
  const pattern = parts.map((part, i) => (i % 2 && known(part) ? "[\\s\\S]+" : escaped(part))).join("");
  return new RegExp(`^${pattern}$`).test(text);
}

function escaped(text) {
  return text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
}
