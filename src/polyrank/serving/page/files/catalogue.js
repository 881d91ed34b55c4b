// The catalogue: looked through, added to, changed. What is acknowledged is durable and in the next answer.

import { ApiError, ask } from "./api.js";
import { chips, el, get, say, sentence } from "./dom.js";

const LIMIT = 50;
const TYPING_MS = 200; // until what is typed is looked for

let model = null;
let next = null;
let controller = null;
let timer = null;
let onChange = () => {};
const shown = new Map(); // rows by id

/** Bind what is on the page; `changed` is called after every change. */
export function start(changed) {
  onChange = changed;
  get("search").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(load, TYPING_MS);
  });
  get("more").addEventListener("click", () => load(next));
  get("add").addEventListener("click", () => open(null));
  get("editor-cancel").addEventListener("click", () => get("editor").close());
  get("editor-form").addEventListener("submit", save);
}

/** Show the candidates of a model. */
export function use(chosen) {
  model = chosen;
  get("toast").hidden = true;
}

/** Show the first page, or the one after `after`. */
export async function load(after = null) {
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  const stored = model.kind !== "model";
  get("add").disabled = !stored;
  if (!stored) {
    clear();
    count(null);
    sentence(get("catalogue-error"), `${model.id} is a model, which has no catalogue; choose an index or a pipeline.`);
    return;
  }
  const query = new URLSearchParams({ model: model.id, limit: LIMIT, q: get("search").value.trim() });
  if (typeof after === "string") query.set("after", after);
  await attempt(async () => {
    const page = await ask(`/v1/candidates?${query}`, { signal, exact: true });
    if (!query.has("after")) clear();
    next = page.next;
    get("more").hidden = next === null;
    count(page.n_candidates);
    const rows = page.candidates.filter((candidate) => !shown.has(candidate.id)).map(rowOf);
    get("rows").append(...rows);
    get("no-rows").hidden = shown.size > 0;
    if (query.has("after")) rows[0]?.querySelector("button").focus();
  });
}

function clear() {
  shown.clear();
  get("rows").replaceChildren();
  get("more").hidden = true;
  get("no-rows").hidden = true;
}

function count(n) {
  get("n-candidates").textContent = n === null ? "" : `${n.toLocaleString("en")} replies`;
}

/** Do something; an error of the server's is shown as a sentence. */
async function attempt(work, target = get("catalogue-error")) {
  sentence(target, null);
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    if (!(error instanceof ApiError)) throw error;
    sentence(target, error.message);
  }
}

function rowOf(candidate) {
  const action = (name, onclick) => el("button", { type: "button", class: "plain", "aria-label": `${name} ${candidate.id}`, onclick }, name);
  const row = el(
    "li",
    { class: "candidate" },
    el("p", { class: "text", dir: "auto" }, candidate.text),
    el(
      "div",
      { class: "row under" },
      el("code", { class: "quiet" }, candidate.id),
      chips(candidate.metadata),
      el("span", { class: "actions" }, action("Edit", () => open(candidate)), action("Remove", () => remove(candidate))),
    ),
  );
  shown.set(candidate.id, row);
  return row;
}

const focusOn = (id, action) => shown.get(id)?.querySelector(`[aria-label^="${action}"]`)?.focus();

let edited = null; // by the dialog; null: a new one

function open(candidate) {
  edited = candidate;
  get("editor-title").textContent = candidate ? "Edit a reply" : "Add a reply";
  get("editor-text").value = candidate?.text ?? "";
  get("editor-id").value = candidate?.id ?? "";
  get("editor-id").readOnly = Boolean(candidate);
  const metadata = candidate?.metadata ?? {};
  get("editor-metadata").value = Object.keys(metadata).length ? JSON.stringify(metadata, null, 1) : "";
  sentence(get("editor-error"), null);
  get("editor").showModal();
  get("editor-text").focus();
}

async function save(event) {
  event.preventDefault();
  const candidate = { text: get("editor-text").value };
  const id = get("editor-id").value.trim();
  if (id) candidate.id = edited ? edited.id : id;
  const metadata = read(get("editor-metadata").value);
  if (metadata === null) {
    sentence(get("editor-error"), 'The metadata is no JSON object; write one such as {"team": "billing"}, or nothing.');
    return;
  }
  await attempt(async () => {
    const saved = await add({ metadata: {}, ...candidate, ...(metadata && { metadata }) }, Boolean(edited));
    get("editor").close();
    const old = shown.get(saved.id);
    const row = rowOf(saved);
    row.classList.add("new");
    if (old) old.replaceWith(row);
    else get("rows").prepend(row);
    get("no-rows").hidden = true;
    toast(edited ? "Changed." : "Added.");
    focusOn(saved.id, "Edit");
  }, get("editor-error"));
}

/** The object that a text is; null: it is none. */
function read(text) {
  if (!text.trim()) return {};
  try {
    const value = JSON.parse(text, (_, part, context) =>
      typeof part === "number" && context?.source && String(part) !== context.source && JSON.rawJSON ? JSON.rawJSON(context.source) : part,
    );
    return value !== null && typeof value === "object" && !Array.isArray(value) ? value : null;
  } catch {
    return null;
  }
}

/** Add a candidate; with its id. */
async function add(candidate, replace) {
  const answer = await ask("/v1/candidates", { body: { model: model.id, candidates: [candidate], replace } });
  count(answer.n_candidates);
  onChange();
  return { ...candidate, id: answer.ids[0] };
}

function remove(candidate) {
  return attempt(async () => {
    const answer = await ask(`/v1/candidates/remove`, { body: { model: model.id, ids: [candidate.id] } });
    count(answer.n_candidates);
    onChange();
    const row = shown.get(candidate.id);
    const after = row.nextElementSibling;
    row.remove();
    shown.delete(candidate.id);
    toast("Removed.", () =>
      attempt(async () => {
        const back = await add(candidate, false);
        get("rows").insertBefore(rowOf(back), after?.isConnected ? after : null);
        toast("Back again.");
        focusOn(back.id, "Remove");
      }),
    );
  });
}

/** Say what was done, with a way back. */
function toast(text, undo = null) {
  const bar = get("toast");
  const back = undo && el("button", { type: "button", onclick: undo }, "Undo");
  bar.hidden = false;
  bar.replaceChildren(el("span", {}, text), ...(back ? [back] : []));
  back?.focus();
  say(text);
}
