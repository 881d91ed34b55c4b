// The catalogue: search and change it. An acknowledged change is durable and applies to the next answer.

import { ApiError, ask } from "./api.js";
import { announce, chips, el, get, sentence } from "./dom.js";

const LIMIT = 50;
const TYPING_MS = 200; // after the last key, before the search starts
const LONG = 300; // characters; longer texts are folded
const AT_ONCE = 100; // imported replies per request
const PAGE = 1000; // exported replies per request

let model = null;
let next = null;
let nCandidates = 0; // in the catalogue, after the last change
let controller = null;
let timer = null;
let onChange = () => {};
const shown = new Map(); // list items by id

/** Add the listeners; `changed` is called after every change. */
export function start(changed) {
  onChange = changed;
  for (const field of ["search", "catalogue-filter"]) {
    get(field).addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(load, TYPING_MS);
    });
  }
  get("export").addEventListener("click", once(exportFile));
  get("import").addEventListener("click", () => get("import-file").click());
  get("import-file").addEventListener("change", once(importFile));
  get("more").addEventListener("click", () => load(next));
  get("add").addEventListener("click", () => open(null));
  get("editor-cancel").addEventListener("click", () => get("editor").close());
  get("editor-form").addEventListener("submit", once(save));
}

/** Use a model, whose candidates `load` shows. Rows of the last one would now change those of this one. */
export function use(chosen) {
  model = chosen;
  controller?.abort();
  clear();
  get("toast").hidden = true;
}

/** Show the first page, or the one after `after`. */
export async function load(after = null) {
  controller?.abort();
  controller = new AbortController();
  const { signal } = controller;
  const stored = model.kind !== "model";
  for (const id of ["add", "import", "export"]) get(id).disabled = !stored;
  if (!stored) {
    clear();
    get("n-candidates").textContent = "";
    sentence(get("catalogue-error"), `${model.id} is a model and has no catalogue; choose an index.`);
    return;
  }
  const query = new URLSearchParams({ model: model.id, limit: LIMIT, ...chosen() });
  if (typeof after === "string") query.set("after", after);
  await attempt(async () => {
    const page = await ask(`/v1/candidates?${query}`, { signal, exact: true });
    if (!query.has("after")) clear();
    next = page.next;
    get("more").hidden = next === null;
    const rows = page.candidates.filter((candidate) => !shown.has(candidate.id)).map(rowOf);
    get("rows").append(...rows);
    get("no-rows").hidden = shown.size > 0;
    count(page.n_candidates);
    if (query.has("after")) rows[0]?.querySelector("button").focus();
  });
}

/** The query parameters of the search and the filter. */
function chosen() {
  const [q, filter] = [get("search").value.trim(), get("catalogue-filter").value.trim()];
  return { ...(q && { q }), ...(filter && { filter }) };
}

/** A listener that ignores events while its last call is running, so that a double click acts once. */
function once(work) {
  let busy = false;
  return async (event) => {
    event?.preventDefault();
    if (busy) return;
    busy = true;
    try {
      await work(event);
    } finally {
      busy = false;
    }
  };
}

function clear() {
  shown.clear();
  get("rows").replaceChildren();
  get("more").hidden = true;
  get("no-rows").hidden = true;
}

/** Show the number of replies, and how many match the search. */
function count(n) {
  const all = `${n.toLocaleString("en")} replies`;
  const matching = `${shown.size.toLocaleString("en")}${next === null ? "" : " or more"} of ${all}`;
  get("n-candidates").textContent = Object.keys(chosen()).length ? matching : all;
}

/** Run a function; an error from the server is shown as a sentence. */
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
    folded(candidate.text),
    el(
      "div",
      { class: "row under" },
      el("code", { class: "quiet" }, candidate.id),
      chips(candidate.metadata),
      el("span", { class: "actions" }, action("Edit", () => open(candidate)), action("Remove", once(() => remove(candidate)))),
    ),
  );
  shown.set(candidate.id, row);
  return row;
}

/** A text; if it is long, its beginning and a button that shows the rest. */
function folded(text) {
  if (text.length <= LONG) return el("p", { class: "text", dir: "auto" }, text);
  const shownText = el("p", { class: "text folded", dir: "auto" }, text);
  const toggle = el("button", { type: "button", class: "plain", "aria-expanded": "false" }, "Show all");
  toggle.addEventListener("click", () => {
    const isFolded = shownText.classList.toggle("folded");
    toggle.textContent = isFolded ? "Show all" : "Show less";
    toggle.setAttribute("aria-expanded", String(!isFolded));
  });
  return [shownText, toggle];
}

const focusOn = (id, action) => shown.get(id)?.querySelector(`[aria-label^="${action}"]`)?.focus();

let edited = {}; // the candidate in the dialog: its id, unless it is new, and `previous`, as it was read; each opening makes another

function open(candidate) {
  edited = { id: candidate?.id, previous: candidate ? [candidate] : [] };
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

async function save() {
  const own = edited;
  const isNew = own.id === undefined;
  const candidate = { text: get("editor-text").value };
  const id = get("editor-id").value.trim();
  if (id) candidate.id = isNew ? id : own.id;
  const metadata = read(get("editor-metadata").value);
  if (metadata === null) {
    sentence(get("editor-error"), 'The metadata is not a JSON object; write one such as {"team": "billing"}, or leave it empty.');
    return;
  }
  await attempt(async () => {
    const saved = await add({ metadata: {}, ...candidate, ...(metadata && { metadata }) }, !isNew, own.previous).catch((error) => explain(error, own));
    if (edited === own) get("editor").close(); // the user may have opened the next one meanwhile
    const old = shown.get(saved.id);
    const row = rowOf(saved);
    row.classList.add("new");
    if (old) old.replaceWith(row);
    else get("rows").prepend(row);
    get("no-rows").hidden = true;
    count(nCandidates);
    toast(isNew ? "Added." : "Changed.");
    focusOn(saved.id, "Edit");
  }, get("editor-error"));
}

/** The object that a JSON text represents; null: it is not an object. */
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

/** Explain that another user has changed or removed a reply meanwhile. The next save replaces what is there now. */
async function explain(error, own) {
  if (error.status !== 412) throw error;
  const query = new URLSearchParams({ model: model.id });
  const now = await ask(`/v1/candidates/${encodeURIComponent(own.id)}?${query}`, { exact: true }).catch((missing) => {
    if (missing.status !== 404) throw missing;
    return null;
  });
  own.previous = now ? [now] : [];
  if (!now) throw new ApiError("Another user has removed this reply meanwhile. Save again to restore it with your text.");
  const metadata = Object.keys(now.metadata).length ? ` with the metadata ${JSON.stringify(now.metadata)}` : "";
  throw new ApiError(`Another user has changed this reply meanwhile, to “${now.text}”${metadata}. Save again to replace it.`);
}

/** Add a candidate; returns it with its id. The server refuses if one of `previous` has changed meanwhile. */
async function add(candidate, replace, previous = []) {
  const answer = await ask("/v1/candidates", { body: { model: model.id, candidates: [candidate], replace, previous } });
  nCandidates = answer.n_candidates;
  onChange();
  return { ...candidate, id: answer.ids[0] };
}

/** Remove a candidate. Its row stays in place with an undo button until the list is loaded again. */
function remove(candidate) {
  return attempt(async () => {
    const answer = await ask("/v1/candidates/remove", { body: { model: model.id, ids: [candidate.id] } });
    const undo = el("button", { type: "button", class: "plain", "aria-label": `Undo removing ${candidate.id}` }, "Undo");
    const gone = el("li", { class: "candidate removed" }, el("div", { class: "row under" }, "Removed ", el("code", { class: "quiet" }, candidate.id), el("span", { class: "actions" }, undo)));
    undo.addEventListener("click", once(() => restore(candidate, gone)));
    shown.get(candidate.id)?.replaceWith(gone); // a search may have replaced the list meanwhile
    shown.delete(candidate.id);
    count(answer.n_candidates);
    onChange();
    undo.focus();
    toast("Removed.");
  });
}

function restore(candidate, gone) {
  return attempt(async () => {
    const back = await add(candidate, false);
    gone.replaceWith(rowOf(back));
    count(nCandidates);
    toast("Restored.");
    focusOn(back.id, "Remove");
  });
}

/** Download all replies that match the search and the filter, as JSON lines. */
function exportFile() {
  const wanted = { model: model.id, limit: PAGE, ...chosen() }; // the user may change them meanwhile
  return attempt(async () => {
    const lines = [];
    for (let after = null; ; ) {
      const query = new URLSearchParams({ ...wanted, ...(after && { after }) });
      const page = await ask(`/v1/candidates?${query}`, { exact: true });
      for (const { id, text, metadata } of page.candidates) lines.push(JSON.stringify({ id, text, ...(Object.keys(metadata).length && { metadata }) }));
      after = page.next;
      if (after === null) break;
      toast(`${lines.length.toLocaleString("en")} replies read…`);
    }
    const url = URL.createObjectURL(new Blob(lines.map((line) => `${line}\n`), { type: "application/jsonl" }));
    el("a", { href: url, download: `${wanted.model}.jsonl` }).click();
    URL.revokeObjectURL(url);
    toast(`${lines.length.toLocaleString("en")} replies exported.`);
  });
}

/** Add the replies of a file: JSON lines with `text` and optional `id` and `metadata`, or one text per line. */
function importFile() {
  const [file] = get("import-file").files;
  const { id } = model; // the user may choose another one meanwhile
  return attempt(async () => {
    const candidates = repliesOf(await file.text(), file.name.endsWith(".jsonl"));
    for (let first = 0; first < candidates.length; first += AT_ONCE) {
      const part = candidates.slice(first, first + AT_ONCE);
      try {
        await ask("/v1/candidates", { body: { model: id, candidates: part, replace: false } });
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
        await load();
        onChange();
        const added = first ? `The first ${first.toLocaleString("en")} replies were added, the others were not.` : "Nothing was added.";
        throw new ApiError(`${added} ${error.message}`);
      }
      toast(`${Math.min(first + AT_ONCE, candidates.length).toLocaleString("en")} of ${candidates.length.toLocaleString("en")} replies added.`);
    }
    onChange();
    await load();
  }).finally(() => (get("import-file").value = "")); // so that the same file can be chosen again, corrected
}

function repliesOf(text, isJson) {
  const lines = text.split(/\r?\n/).map((line, i) => [line.trim(), i + 1]).filter(([line]) => line);
  if (!lines.length) throw new ApiError("The file contains no replies.");
  return lines.map(([line, number]) => {
    if (!isJson) return { text: line };
    const row = read(line);
    if (typeof row?.text !== "string") throw new ApiError(`Line ${number} is not a JSON object with a "text"; nothing was added.`);
    return { text: row.text, metadata: row.metadata ?? {}, ...(row.id && { id: row.id }) };
  });
}

/** Show a short message. */
function toast(text) {
  const bar = get("toast");
  bar.hidden = false;
  bar.textContent = text;
  announce(text);
}
