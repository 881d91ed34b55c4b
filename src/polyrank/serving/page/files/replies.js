// Shows the replies of one model as cards.

import { ApiError, ask, whenBack } from "./api.js";
import { announce, chips, duration, el, number } from "./dom.js";
import { isEnabled, sendOutcome } from "./feedback.js";
import { marked } from "./slots.js";
import { explained } from "./why.js";

const NEAR = 0.05; // share of the largest score; smaller differences are called close
const FAR = 0.3;

let n_panels = 0;

/**
 * A panel of cards.
 *
 * `take(answer, reply)` and `edit(answer, reply)` are called when the user chooses a reply, `leave()` when the keyboard
 * focus returns to the input, `retry()` to send the request again, and `refused(error)` with an error about the request
 * itself: it returns true if it has shown the error.
 */
export function repliesPanel(model, { take, edit, leave, refused, retry }) {
  const prefix = `panel-${++n_panels}`;
  const facts = el("p", { class: "facts quiet" });
  const note = el("p", { class: "note", id: `${prefix}-note` });
  const list = el("ol", { class: "cards", "aria-label": `Replies of ${model.id}`, onkeydown: move });
  const none = el("button", { type: "button", class: "plain none", hidden: true, onclick: refuse }, "None fits");
  const element = el(
    "section",
    { class: "panel", "aria-labelledby": `${prefix}-title` },
    el("div", { class: "row" }, el("h2", { id: `${prefix}-title` }, model.id), facts),
    note,
    list,
    none,
  );
  let controller = null;
  let answer = null;
  let asked = [];
  let filter = null;

  /** Request replies and show them; show `hint` instead if the conversation needs no reply. */
  async function show(context, question, hint) {
    controller?.abort();
    controller = new AbortController();
    const { signal } = controller;
    answer = null;
    asked = context;
    filter = model.kind === "model" ? null : question.filter || null;
    if (hint) {
      clear(hint);
      return;
    }
    list.inert = true; // the old replies belong to another request
    element.setAttribute("aria-busy", "true");
    try {
      const began = performance.now();
      const given = await answered(model, context, question, signal);
      if (signal.aborted) return;
      render(given, performance.now() - began);
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof ApiError)) throw error;
      if (refused(error)) clear("");
      else fail(error, signal);
    } finally {
      if (!signal.aborted) {
        element.removeAttribute("aria-busy");
        list.inert = false;
      }
    }
  }

  /** Show an error with a retry button; after an outage, retry automatically once the server answers. */
  function fail(error, signal) {
    clear(error.message, true);
    note.append(" ", el("button", { type: "button", onclick: retry }, "Retry"));
    if (!error.status) whenBack(signal).then(retry, () => {});
  }

  function clear(hint, wrong = false) {
    list.replaceChildren();
    list.inert = false;
    element.removeAttribute("aria-busy");
    facts.textContent = "";
    none.hidden = true;
    note.className = wrong ? "note error" : "note quiet";
    note.textContent = hint;
    if (wrong) announce(hint);
  }

  function render(given, ms) {
    answer = given;
    const { results } = given;
    facts.textContent = factsOf(given, ms);
    facts.title = timings(given);
    note.className = given.abstained ? "note abstained" : "note quiet";
    note.textContent = !results.length
      ? ["No candidate is left", ...(given.notes ?? [])].join("; ") + "."
      : given.abstained
        ? "No good answer. These are the closest."
        : "";
    const scores = results.map((reply) => reply.score);
    const scale = scaleOf(scores);
    list.replaceChildren(...results.map((reply, i) => card(reply, i, scale(reply.score), standing(i, scores))));
    list.classList.toggle("weak", given.abstained);
    none.hidden = !(isEnabled() && given.request_id && results.length);
    const best = results.length ? ` The best: ${results[0].text}` : "";
    announce(`${model.id}: ${given.abstained ? "no good answer. " : ""}${results.length} replies.${best}`);
  }

  function card(reply, i, [start, end], words) {
    const slot = el("div", { class: "why-slot", id: `${prefix}-why-${i}`, hidden: true });
    const fill = el("span", { class: "fill" });
    fill.style.marginInlineStart = `${100 * start}%`;
    fill.style.width = `${100 * (end - start)}%`;
    const unseen = el("span", { class: "unseen" }, ` reply ${i + 1}`);
    const why = el(
      "button",
      { type: "button", class: "plain", "aria-expanded": "false", "aria-controls": slot.id, onclick: () => explain(reply, why, slot) },
      "Why",
      unseen,
    );
    return el(
      "li",
      { class: "card" },
      el(
        "button",
        { type: "button", class: "take", onclick: () => choose(i) },
        el("span", { class: "unseen" }, "Take reply "),
        el("span", { class: "rank" }, String(i + 1)),
        el("span", { class: "text", dir: "auto" }, marked(reply)),
      ),
      el("div", { class: "meter", title: "The score, on a scale that starts at 0", "aria-hidden": "true" }, fill),
      el(
        "div",
        { class: "row under" },
        el("span", { class: "standing" }, words),
        chips(reply.metadata),
        asked.includes(reply.text) && el("span", { class: "quiet" }, "already in the conversation"),
        el(
          "span",
          { class: "actions" },
          el("button", { type: "button", class: "plain", onclick: () => edit(answer, reply) }, "Edit", unseen.cloneNode(true)),
          why,
        ),
      ),
      slot,
    );
  }

  async function explain(reply, button, slot) {
    const opens = slot.hidden;
    slot.hidden = !opens;
    button.setAttribute("aria-expanded", String(opens));
    if (!opens || slot.childElementCount) return;
    const details = reply.retrieval_score == null ? "" : el("p", { class: "figure quiet" }, scoresOf(reply));
    slot.replaceChildren(details, el("p", { class: "quiet" }, "Explaining the score…"));
    try {
      const why = await ask("/v1/explain", { body: { model: model.id, context: asked, text: reply.template ?? reply.text, filter } });
      slot.replaceChildren(details, explained(why));
      announce(slot.querySelector(".why-total").textContent);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      slot.replaceChildren(details, el("p", { class: "error" }, error.message));
      announce(error.message);
    }
  }

  /** Take the reply of a rank, counted from 0; returns whether it exists. */
  function choose(i) {
    const reply = answer?.results[i];
    if (reply) take(answer, reply);
    return Boolean(reply);
  }

  async function refuse() {
    none.hidden = true;
    const given = answer;
    leave();
    await sendOutcome(given, "refused");
    announce("Recorded: none fits.");
  }

  const cards = () => [...list.querySelectorAll(".take")];

  function move(event) {
    const all = cards();
    const at = all.findIndex((one) => one.closest(".card").contains(event.target));
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape" || (step === -1 && at === 0)) leave();
    else if (step) all[Math.min(at + step, all.length - 1)].focus();
    else if (event.key === "w" && !event.ctrlKey && !event.metaKey && !event.altKey) all[at].closest(".card").querySelector("[aria-expanded]").click();
    else return;
    event.preventDefault();
  }

  /** Focus the best reply; returns whether there is one. */
  function enter() {
    const [first] = answer ? cards() : [];
    first?.focus();
    return Boolean(first);
  }

  return { element, show, choose, enter, model, stop: () => controller?.abort() };
}

/** Start and end of a score's bar, as shares of the meter, on one scale that includes all scores and 0. */
export function scaleOf(scores) {
  const [least, most] = [Math.min(0, ...scores), Math.max(0, ...scores)];
  const at = (score) => (most > least ? (score - least) / (most - least) : 0);
  return (score) => [at(Math.min(score, 0)), at(Math.max(score, 0))];
}

/** Compares the reply of a rank, counted from 0, with the first, in words. */
export function standing(i, scores) {
  if (!i) return "the best";
  const gap = (scores[0] - scores[i]) / Math.max(...scores.map(Math.abs), Number.MIN_VALUE);
  return gap <= NEAR ? "close to the first" : gap <= FAR ? "behind the first" : "far behind the first";
}

/** The scores of both stages. */
function scoresOf(reply) {
  const stages = [
    ["retriever", reply.retrieval_score],
    ["re-ranker", reply.rerank_score],
  ];
  return stages.filter(([, score]) => score != null).map(([name, score]) => `${name} ${number(score)}`).join(" · ");
}

/** Replies of an index; for a model, the given texts in the order of its scores. */
async function answered(model, context, { k, filter, candidates, conversation }, signal) {
  if (model.kind !== "model") {
    const body = { model: model.id, context, k, conversation, diverse: true };
    if (filter) body.filter = filter;
    return ask("/v1/respond", { body, signal });
  }
  const { scores } = await ask("/v1/score", { body: { model: model.id, context, candidates }, signal });
  const results = scores.map((score, i) => ({ id: null, text: candidates[i], score, metadata: {} }));
  results.sort((a, b) => b.score - a.score);
  return { request_id: null, results: results.slice(0, k), n_scored: scores.length, abstained: false, exact: null, timings_ms: {} };
}

function factsOf({ exact, n_scored, timings_ms }, ms) {
  const how = { true: "exact", false: "approximate" }[exact];
  const n = n_scored != null && `${n_scored.toLocaleString("en")} scored`;
  return [n, how, duration(timings_ms.model ?? ms)].filter(Boolean).join(" · ");
}

function timings({ timings_ms, ways, confidence }) {
  const times = Object.entries(timings_ms).map(([name, ms]) => `${name} ${duration(ms)}`);
  if (ways?.length) times.push(`by ${ways.join(", ")}`);
  if (confidence != null) times.push(`confidence ${number(confidence)}`);
  return times.join(", ");
}
