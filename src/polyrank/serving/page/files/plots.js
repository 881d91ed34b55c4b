// Draws bar charts and histograms, each with a description in words.

import { el, svg } from "./dom.js";

const ROW = 26;
const LARGEST = 1.2; // maximum enlargement, so that texts keep a similar size

/**
 * Horizontal bars.
 *
 * `rows` have a `name`, a `text` next to the bar, and `parts`, each with a `value` and a `kind` that determines the
 * colour; optionally an `interval`. `most` is the end of the scale.
 */
export function bars(title, rows, most = Math.max(...rows.map((row) => sum(row.parts)), 1e-9)) {
  const longest = Math.max(...rows.map((row) => row.name.length));
  const [left, width, right] = [8 * longest + 16, 240, 100];
  const x = (value) => left + (width * value) / most;
  const shapes = rows.flatMap((row, i) => {
    const y = i * ROW + 4;
    let at = 0;
    const rects = row.parts.map(({ value, kind }) => {
      const rect = svg("rect", { x: x(at), y, width: Math.max(0, x(at + value) - x(at)), height: ROW - 8, rx: 3, class: kind });
      at += value;
      return rect;
    });
    const middle = y + (ROW - 8) / 2;
    const [low, high] = row.interval ?? [];
    const whisker = row.interval && svg("path", { d: `M${x(low)} ${middle}H${x(high)}M${x(low)} ${middle - 4}v8M${x(high)} ${middle - 4}v8`, class: "whisker" });
    return [
      svg("text", { x: left - 8, y: middle, class: "end" }, row.name),
      ...rects,
      whisker,
      svg("text", { x: x(Math.max(at, high ?? 0)) + 8, y: middle, class: "value" }, row.text),
    ];
  });
  const label = `${title}: ${rows.map((row) => `${row.name} ${row.text}`).join(", ")}`;
  return drawing(title, label, left + width + right, rows.length * ROW + 4, shapes);
}

/** A histogram: `counts` in buckets that end at `edges`. */
export function histogram(title, edges, counts, text) {
  const [width, height, foot] = [420, 120, 22];
  const step = width / counts.length;
  const most = Math.max(...counts, 1);
  const shapes = counts.flatMap((n, i) => {
    const tall = (n / most) * (height - 16);
    const middle = (i + 0.5) * step;
    return [
      svg("rect", { x: i * step + 1.5, y: height - tall, width: step - 3, height: tall, rx: 2, class: "ok" }),
      n > 0 && svg("text", { x: middle, y: height - tall - 7, class: "middle value" }, String(n)),
      svg("text", { x: middle, y: height + 12, class: i % 2 ? "middle minor" : "middle" }, edges[i]),
    ];
  });
  shapes.push(svg("path", { d: `M0 ${height}H${width}`, class: "axis" }));
  const words = counts.map((n, i) => n && `${n} up to ${edges[i]}`).filter(Boolean);
  return drawing(`${title}, ${text}`, `${title}, ${text}: ${words.join(", ")}`, width, height + foot, shapes);
}

function drawing(title, label, width, height, shapes) {
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label }, ...shapes);
  picture.style.maxWidth = `${width * LARGEST}px`;
  return el("figure", { class: "plot" }, el("figcaption", {}, title), picture);
}

const sum = (parts) => parts.reduce((total, part) => total + part.value, 0);
