// The conversation: its turns, the next turn, and the panels with replies.

import { ask } from "./api.js";
import { el, get, sentence } from "./dom.js";
import { sendOutcome } from "./feedback.js";
import { repliesPanel } from "./replies.js";
import { gapsIn, isFilled } from "./slots.js";

const SPEAKERS = { customer: "Customer", agent: "Agent" };
const EXAMPLES = 3;

let models = [];
let panels = [];
let turns = []; // never changed, only replaced, so that undo can restore earlier ones
let earlier = [];
let conversation = newName();
let editing = null; // the reply that the user is editing before sending it

/** A random id that a server with feedback uses for the conversation. */
function newName() {
  return Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-");
}

const hasKeys = () => !matchMedia("(pointer: coarse)").matches;

/** Add the listeners. */
export function start() {
  get("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send(editing ? "agent" : "customer");
  });
  get("with-gaps").addEventListener("click", () => send("agent", true));
  get("as-agent").addEventListener("click", () => send("agent"));
  get("turn").addEventListener("keydown", typed);
  get("undo").addEventListener("click", undo);
  get("fresh").addEventListener("click", () => {
    conversation = newName();
    change([]);
    get("turn").focus();
  });
  for (const id of ["k", "filter", "candidates"]) get(id).addEventListener("change", refresh);
  get("compare").addEventListener("change", () => use(get("model").value));
  document.addEventListener("keydown", digit);
}

/** Set the list of models. */
export function offer(all) {
  models = all;
  get("compare-label").hidden = all.length < 2;
}

/** Use a model, and the one that it is compared with. */
export function use(name) {
  const others = models.filter((model) => model.id !== name);
  const compared = others.find((model) => model.id === get("compare").value);
  get("compare").replaceChildren(el("option", { value: "" }, "nothing"), ...others.map((model) => el("option", {}, model.id)));
  get("compare").value = compared?.id ?? "";
  const shown = [models.find((model) => model.id === name), compared].filter(Boolean);
  const calls = { take, edit, leave: () => get("turn").focus(), refused, retry: refresh };
  for (const panel of panels) panel.stop();
  panels = shown.map((model) => repliesPanel(model, calls));
  get("panels").replaceChildren(...panels.map((panel) => panel.element));
  get("view-chat").classList.toggle("compares", panels.length > 1);
  get("candidates-label").hidden = shown.every((model) => model.kind !== "model");
  refresh();
  suggest(shown[0]);
}

/** Offer first turns: those of the test in the report of a fit, otherwise texts of the catalogue, questions first. */
async function suggest(model) {
  const list = get("example-turns");
  list.replaceChildren();
  if (model.kind === "model") return;
  const report = await ask(`/v1/models/${encodeURIComponent(model.id)}/report`).catch(() => null);
  const asked = (report?.test.answers ?? []).map(({ context }) => context[0]);
  const page = asked.length ? null : await ask(`/v1/candidates?${new URLSearchParams({ model: model.id, limit: 200 })}`).catch(() => null);
  if (panels[0]?.model !== model) return; // the user has chosen another model meanwhile
  const texts = [...new Set([...asked, ...(page?.candidates ?? []).map(({ text }) => text)])].filter((text) => text.length <= 120 && !/\{\w+\}/.test(text)); // no templates
  if (page) texts.sort((a, b) => b.includes("?") - a.includes("?"));
  const begin = (text) => () => {
    change([...turns, { speaker: "customer", text }]);
    get("turn").focus();
  };
  list.replaceChildren(...texts.slice(0, EXAMPLES).map((text) => el("li", {}, el("button", { type: "button", dir: "auto", onclick: begin(text) }, text))));
}

/** Request all replies again, such as after a change of the catalogue. */
export function refresh() {
  sentence(get("filter-error"), null);
  const lines = get("candidates").value.split("\n").filter((line) => line.trim());
  const question = { k: Number(get("k").value), filter: get("filter").value.trim(), candidates: lines, conversation };
  for (const panel of panels) {
    panel.show(
      turns.map((turn) => turn.text),
      question,
      hintFor(panel.model, lines),
    );
  }
}

function hintFor(model, lines) {
  if (!turns.length) return "Replies appear here.";
  if (turns.at(-1).speaker === "agent") return "It is the customer's turn.";
  if (model.kind === "model" && !lines.length) return "This model has no catalogue; enter replies to rank.";
  return null;
}

function refused(error) {
  const isFilterError = get("filter").value.trim() && /^filter\b|^the filter\b/i.test(error.message);
  if (isFilterError) {
    get("settings").open = true;
    sentence(get("filter-error"), error.message);
  }
  return Boolean(isFilterError);
}

function send(speaker, withGaps = false) {
  const field = get("turn");
  const text = field.value.trim();
  if (!text || (!withGaps && asksForGaps(text))) return;
  if (editing) {
    const { answer, reply } = editing;
    if (isFilled(text, reply)) sendOutcome(answer, "taken", reply);
    else sendOutcome(answer, "edited", reply, text);
  }
  write("");
  change([...turns, { speaker, text }]);
  if (hasKeys()) field.focus();
  else field.blur(); // an on-screen keyboard would cover the replies
}

/** Whether a reply has gaps; if so, select the first one, and offer to send the reply as it is. */
function asksForGaps(text) {
  const [gap] = gapsIn(text, editing?.reply);
  get("gaps").hidden = !gap;
  if (!gap) return false;
  const field = get("turn");
  const at = field.value.indexOf(gap);
  get("gap").textContent = gap;
  field.focus();
  field.setSelectionRange(at, at + gap.length);
  return true;
}

function take(answer, reply) {
  if (gapsIn(reply.text, reply).length) {
    edit(answer, reply);
    return;
  }
  sendOutcome(answer, "taken", reply);
  write(get("turn").value);
  change([...turns, { speaker: "agent", text: reply.text }]);
  if (hasKeys()) get("turn").focus();
}

function edit(answer, reply) {
  editing = { answer, reply };
  write(reply.text, "Agent message");
  if (!asksForGaps(reply.text)) get("turn").focus();
}

/** Set the text and the label of the input. */
function write(text, label = "Customer message") {
  if (label === "Customer message") editing = null;
  get("turn").value = text;
  get("gaps").hidden = true;
  get("turn-label").textContent = label;
  get("as-agent").hidden = Boolean(editing);
}

function change(next) {
  earlier.push(turns);
  show(next);
}

function undo() {
  if (earlier.length) show(earlier.pop());
  if (!earlier.length) get("turn").focus(); // a disabled button has no focus
}

function show(next) {
  turns = next;
  get("undo").disabled = !earlier.length;
  get("fresh").disabled = !turns.length;
  get("no-turns").hidden = turns.length > 0;
  get("examples").hidden = turns.length > 0;
  const list = get("turns");
  list.replaceChildren(...turns.map(turnRow));
  list.scrollTop = list.scrollHeight;
  refresh();
}

function turnRow({ speaker, text }, i) {
  const remove = () => {
    change(turns.filter((_, j) => j !== i));
    get("turn").focus();
  };
  return el(
    "li",
    { class: `turn ${speaker}` },
    el("span", { class: "speaker" }, SPEAKERS[speaker]),
    el("p", { dir: "auto" }, text),
    el("button", { type: "button", class: "plain remove", "aria-label": `Remove turn ${i + 1}`, onclick: remove }, "×"),
  );
}

function typed(event) {
  const { value, selectionStart } = event.target;
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    send(editing ? "agent" : "customer");
  } else if (event.key === "ArrowDown" && selectionStart === value.length) {
    if (panels.some((panel) => panel.enter())) event.preventDefault();
  } else if (event.key === "Escape" && editing) {
    write("");
  }
}

/** A digit takes the reply of this rank, unless the user is typing. */
function digit(event) {
  const rank = /^[1-9]$/.test(event.key) ? Number(event.key) : 0;
  const writing = event.target.closest("input, textarea, select, dialog");
  if (!rank || writing || event.ctrlKey || event.metaKey || event.altKey || get("view-chat").hidden) return;
  const panel = panels.find((one) => one.element.contains(event.target)) ?? panels[0];
  if (panel?.choose(rank - 1)) event.preventDefault();
}
