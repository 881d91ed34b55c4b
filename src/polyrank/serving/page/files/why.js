// Explains a score: each text with its tokens coloured by their contribution, and the same in words and numbers.

import { el, number, signed } from "./dom.js";

const STRONGEST = 4; // context vectors shown
const LEAST = 0.005; // smallest weight shown, because weights are rounded to per cent
const WEAK = 0.1; // share of the largest contribution; smaller ones are not underlined
const LETTERS = /^(?![\p{sc=Han}\p{sc=Hira}\p{sc=Kana}])[\p{L}\p{N}\p{M}]+$/u;
const METHODS = {
  "sum of tokens": "The score is a sum over tokens; each share is its term.",
  "sum of words": "The score is a sum over words; each share is its term.",
  hubs: "This is how high the reply scores in other contexts; words do not contribute.",
  counts: "The score depends on how often people gave this reply; words do not contribute.",
  "left out": "Each share is the drop of the score without this word or turn.",
  sum: "The score is the weighted sum of the terms below.",
};

/** Shows an explanation returned by `/v1/explain`. */
export function explained(why, level = 4) {
  const terms = Object.entries(why.parts ?? {});
  return el(
    "div",
    { class: "why" },
    el("p", { class: "why-total" }, "Score ", el("strong", {}, number(why.score)), ". ", summary(why)),
    sides(why, level),
    terms.map(([name, part]) => [el(`h${level}`, {}, title(name, part.weight)), explained(part, Math.min(level + 1, 6))]),
  );
}

/** The heading of a term of a ranker. */
function title(name, weight) {
  return `Term ${name}${weight == null ? "" : ` (weight ${Number(weight.toPrecision(4))})`}`;
}

function sides(why, level) {
  const tokens = [...why.turns, ...why.background, why.candidate].flatMap((text) => text.tokens);
  const largest = Math.max(...tokens.map((token) => Math.abs(token.share)), 1e-12);
  const texts = [...why.background.map((text) => ["Background", text]), ...why.turns.map((text, i) => [`Turn ${i + 1}`, text])];
  const most = Math.max(...texts.map(([, text]) => Math.abs(text.share)), 1e-12);
  return [
    legend(),
    el("ol", { class: "why-turns" }, texts.map(([name, text]) => textRow(name, text, largest, most))),
    Math.abs(why.rest) >= 0.0005 && el("p", { class: "quiet" }, `Not from any word${why.exact ? ", such as boundary marks" : ""}: ${signed(why.rest)}.`),
    el(`h${level}`, {}, "In the reply"),
    el("p", { class: "heat", dir: "auto" }, heat(why.candidate, largest)),
    why.vectors?.length ? vectors(why.vectors, level) : null,
    table(texts, why.candidate),
  ];
}

function summary(why) {
  const parts = [
    ...why.turns.map((text, i) => [`turn ${i + 1}`, text.share]),
    ...why.background.map((text) => ["the background", text.share]),
    [why.exact ? "no word, such as boundary marks" : "no word", why.rest],
  ];
  const [most, share] = parts.reduce((best, part) => (Math.abs(part[1]) > Math.abs(best[1]) ? part : best));
  const strongest = why.turns
    .flatMap((text) => words(text.tokens))
    .filter((token) => token.share > 0)
    .sort((a, b) => b.share - a.share)
    .slice(0, 3)
    .map((token) => `“${token.text}” ${signed(token.share)}`);
  const largest = parts.length > 2 || most !== "turn 1" ? `Most comes from ${most} (${signed(share)}). ` : "";
  const named = strongest.length ? `Strongest: ${strongest.join(", ")}. ` : "";
  return `${largest}${named}${METHODS[why.method] ?? ""}`;
}

/** Joins tokens that belong to the same word. Chinese and Japanese characters stay separate. */
function words(tokens) {
  const joined = [];
  for (const token of tokens) {
    const last = joined.at(-1);
    const continues = last?.end === token.start && LETTERS.test(last.text) && LETTERS.test(token.text);
    if (continues) joined[joined.length - 1] = { text: last.text + token.text, end: token.end, share: last.share + token.share };
    else joined.push(token);
  }
  return joined;
}

function legend() {
  return el(
    "p",
    { class: "legend" },
    el("span", { class: "token lowers full" }, "lowers"),
    el("span", { class: "scale", "aria-hidden": "true" }),
    el("span", { class: "token raises full" }, "raises"),
    el("span", { class: "quiet" }, "the score"),
  );
}

function textRow(name, text, largest, most) {
  const bar = el("span", { class: `fill ${text.share < 0 ? "lowers" : "raises"}` });
  bar.style.width = `${(50 * Math.abs(text.share)) / most}%`;
  return el(
    "li",
    {},
    el("span", { class: "name" }, name),
    el("span", { class: "balance", "aria-hidden": "true" }, bar),
    el("span", { class: "figure" }, signed(text.share)),
    el("p", { class: "heat", dir: "auto" }, text.read === false ? el("span", { class: "unread" }, `${text.text} (truncated)`) : heat(text, largest)),
  );
}

/** A text with coloured tokens. Offsets count code points, but JavaScript strings count UTF-16 units. */
function heat(text, largest) {
  const points = Array.from(text.text);
  const nodes = [];
  let at = 0;
  for (const token of text.tokens) {
    const start = Math.max(token.start, at);
    if (token.end <= start) continue;
    if (start > at) nodes.push(points.slice(at, start).join(""));
    const share = Math.abs(token.share) / largest;
    const kind = token.read === false ? "unread" : token.share < 0 ? `lowers ${share < WEAK ? "weak" : ""}` : "raises";
    const title = token.read === false ? "truncated, not read" : signed(token.share);
    const span = el("span", { class: `token ${kind}`, title }, points.slice(start, token.end).join(""));
    span.style.setProperty("--heat", share.toFixed(3));
    nodes.push(span);
    at = token.end;
  }
  nodes.push(points.slice(at).join(""));
  return nodes;
}

function vectors(all, level) {
  const row = (vector) => {
    const bar = el("span", { class: "fill raises" });
    bar.style.width = `${100 * vector.weight}%`;
    const looks = vector.tokens.filter((token) => token.weight >= LEAST).slice(0, 5).map((token) => `${token.text || "boundary"} ${Math.round(100 * token.weight)}%`);
    return el(
      "li",
      {},
      el("span", { class: "name" }, `Vector ${vector.index + 1}`),
      el("span", { class: "meter", "aria-hidden": "true" }, bar),
      el("span", { class: "figure" }, `${Math.round(100 * vector.weight)}% × ${number(vector.dot)}`),
      el("p", { class: "quiet" }, `looks at ${looks.join(", ")}`),
    );
  };
  const shown = all.filter((vector, i) => !i || vector.weight >= LEAST).slice(0, STRONGEST);
  return [
    el(`h${level}`, {}, "Strongest context vectors"),
    el("ol", { class: "why-turns" }, shown.map(row)),
    all.length > shown.length && el("p", { class: "quiet" }, `${all.length - shown.length} more have smaller weights.`),
  ];
}

function table(texts, candidate) {
  const rows = [...texts, ["Reply", candidate]].flatMap(([name, text]) =>
    text.tokens.map((token) =>
      el("tr", {}, el("td", {}, name), el("td", {}, token.text), el("td", {}, token.read === false ? "not read" : signed(token.share))),
    ),
  );
  const head = el("tr", {}, ["Where", "Token", "Share"].map((name) => el("th", { scope: "col" }, name)));
  return el(
    "details",
    { class: "as-table" },
    el("summary", {}, "As a table"),
    el("table", {}, el("thead", {}, head), el("tbody", {}, rows)),
  );
}
