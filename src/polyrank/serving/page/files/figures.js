// Figures: the models, numbers and durations of requests, and how often suggestions were used.

import { ApiError, ask, askText } from "./api.js";
import { duration, el, get, sentence } from "./dom.js";
import { bars, histogram } from "./plots.js";

const OWN = /^\/($|page\/|openapi|metrics|live|ready)|^none$/; // routes that do not concern models
const ROUTES = 6; // number of routes whose durations are drawn
const FEWEST = 30; // outcomes that a bar needs; with fewer, the interval exceeds most differences

/** Show the current figures. `routes`: the server's routes. */
export async function show(routes) {
  const target = get("figures");
  target.setAttribute("aria-busy", "true");
  sentence(get("figures-error"), null);
  try {
    const [models, metrics] = await Promise.all([ask("/v1/models"), askText("/metrics")]);
    const report = routes.has("/v1/feedback/report") ? await ask("/v1/feedback/report").catch(() => null) : null;
    const reported = models.data.filter((model) => model.kind === "index").map((model) => fitted(model.id));
    target.replaceChildren(...[report && use(report), ...requests(samples(metrics)), served(models.data), ...(await Promise.all(reported))].filter(Boolean));
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    sentence(get("figures-error"), error.message);
  } finally {
    target.removeAttribute("aria-busy");
  }
}

function served(models) {
  const facts = (model) =>
    [
      ["kind", model.kind && (model.stages > 1 ? `${model.kind} of ${model.stages} stages` : model.kind)],
      ["replies", model.n_candidates?.toLocaleString("en")],
      ["scorer", model.scorer],
      ["dimension", model.dimension],
      ["token limits", model.max_context_tokens && `${model.max_context_tokens} for a context, ${model.max_candidate_tokens} for a reply`],
      ["fingerprint", model.fingerprint && el("code", { title: model.fingerprint }, model.fingerprint.slice(0, 12))],
    ].filter(([, value]) => value != null && value !== "");
  const card = (model) =>
    el(
      "article",
      { class: "served" },
      el("h4", {}, model.id),
      el("dl", {}, facts(model).map(([name, value]) => [el("dt", {}, name), el("dd", {}, value instanceof Node ? value : String(value))])),
    );
  return el("section", {}, el("h3", {}, "Models"), el("div", { class: "tiles" }, models.map(card)));
}

/** The steps of `polyrank fit`, if it made the index: what each gained on validation lists, and the result on the test. */
async function fitted(id) {
  const report = await ask(`/v1/models/${encodeURIComponent(id)}/report`);
  if (!report) return null;
  const percent = (share) => (100 * share).toFixed(1);
  const figure = (values) => (values?.mean == null ? "" : `${percent(values.mean)} (${percent(values.low)} to ${percent(values.high)})`);
  const row = ({ step, metrics, gain, kept, minutes, milliseconds }) =>
    el(
      "tr",
      {},
      [step, figure(metrics.MRR), figure(gain), kept == null ? "" : kept ? "kept" : "not kept", minutes ? minutes.toFixed(1) : "", milliseconds == null ? "" : milliseconds.toFixed(1)].map(
        (cell) => el("td", {}, cell),
      ),
    );
  const headings = ["step", "MRR, %", "gain", "result", "CPU minutes", "ms"].map((text) => el("th", { scope: "col" }, text));
  const { ranker } = report.test;
  const [r1, low, high] = [ranker.metrics["R@1"], ...ranker.intervals["R@1"]].map(percent);
  const text = `The reply that was given is first in ${r1}% (${low} to ${high}) of ${ranker.n_examples.toLocaleString("en")} test contexts.`;
  const table = el("table", { class: "steps" }, el("thead", {}, el("tr", {}, headings)), el("tbody", {}, report.lines.map(row)));
  return el("section", {}, el("h3", {}, `How ${id} was fitted`), el("p", { class: "quiet" }, text), el("div", { class: "served" }, table));
}

/** Samples in Prometheus's text format: name, labels, value. */
export function samples(text) {
  const line = /^(\w+)(?:\{(.*)\})? (\S+)$/;
  const label = /(\w+)="((?:[^"\\]|\\.)*)"/g;
  return text
    .split("\n")
    .map((row) => line.exec(row))
    .filter(Boolean)
    .map(([, name, labels, value]) => ({
      name,
      labels: Object.fromEntries([...(labels ?? "").matchAll(label)].map(([, key, quoted]) => [key, quoted.replace(/\\(.)/g, "$1")])),
      value: Number(value.replace("Inf", "Infinity")),
    }));
}

function requests(all) {
  const named = (name) => all.filter((sample) => sample.name === `polyrank_${name}` && !OWN.test(sample.labels.route ?? "/v1"));
  const one = (name) => all.find((sample) => sample.name === `polyrank_${name}`)?.value ?? 0;
  const counts = new Map();
  for (const { labels, value } of named("requests_total")) {
    if (labels.status === "499") continue; // the client left, such as this page after the next turn
    const kind = labels.status < "400" ? "ok" : labels.status < "500" ? "refused" : "failed";
    const parts = counts.get(labels.route) ?? { ok: 0, refused: 0, failed: 0 };
    parts[kind] += value;
    counts.set(labels.route, parts);
  }
  if (!counts.size) return [el("p", { class: "quiet" }, "No requests yet.")];
  const total = ({ ok, refused, failed }) => ok + refused + failed;
  const sorted = [...counts].sort(([, a], [, b]) => total(b) - total(a));
  const rows = sorted.map(([route, parts]) => ({
    name: route,
    parts: Object.entries(parts).map(([kind, value]) => ({ kind, value })),
    text: `${total(parts)}${parts.refused ? ` (${parts.refused} refused)` : ""}${parts.failed ? ` (${parts.failed} failed)` : ""}`,
  }));
  const state = `Waiting requests: ${one("waiting_requests")} · model processes: ${one("workers_ready")} · died: ${one("worker_deaths_total")}`;
  const plots = sorted.slice(0, ROUTES).map(([route]) => latency(route, named("request_seconds_bucket")));
  return [
    el("section", {}, el("h3", {}, "Requests"), el("p", { class: "quiet" }, state), bars("By route", rows)),
    el("section", {}, el("h3", {}, "Response time"), el("div", { class: "tiles wide" }, plots)),
  ];
}

function latency(route, buckets) {
  const own = buckets.filter((sample) => sample.labels.route === route).map(({ labels, value }) => [Number(labels.le.replace("+Inf", "Infinity")), value]);
  own.sort(([a], [b]) => a - b);
  const counts = own.map(([, value], i) => value - (i ? own[i - 1][1] : 0));
  const n = own.at(-1)[1];
  const within = (share) => own.find(([, value]) => value >= share * n)[0];
  const text = (seconds) => (Number.isFinite(seconds) ? duration(seconds * 1000) : "longer");
  const short = ([edge], i) => (!Number.isFinite(edge) ? "more" : edge < 1 ? `${edge * 1000}${i ? "" : " ms"}` : `${edge} s`);
  return histogram(route, own.map(short), counts, `half within ${text(within(0.5))}, 95% within ${text(within(0.95))}`);
}

function use(report) {
  const drawn = (title, rows) => {
    const known = (rows ?? []).filter((row) => row.acceptance != null);
    const row = ({ name, acceptance, interval, ...counts }) => {
      const n = counts.n_shown ?? counts.taken + counts.edited + counts.refused;
      const used = counts.taken + counts.edited;
      if (n < FEWEST) return { name, parts: [], text: `${used} of ${n}` };
      return { name, parts: [{ kind: "ok", value: acceptance }], interval, text: `${Math.round(100 * acceptance)}% of ${n}` };
    };
    return known.length ? bars(title, known.map(row), 1) : null;
  };
  const { n_requests, taken, edited, refused } = report;
  const plots = [drawn("Taken, by week", report.by_week), drawn("Taken, by rank", report.by_rank)].filter(Boolean);
  const text = `${n_requests} answers shown: ${taken} taken, ${edited} edited, ${refused} refused. Bars show shares with 95% intervals if at least ${FEWEST} outcomes are known.`;
  return el("section", {}, el("h3", {}, "Use of suggestions"), el("p", { class: "quiet" }, text), el("div", { class: "tiles wide" }, plots));
}
