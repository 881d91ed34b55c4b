// Sends requests to the server, and repeats those that it refused before doing any work. Their addresses are relative to
// the page's, because a proxy may serve it below a prefix.

const AGAIN = new Set(["starting", "overloaded", "stopping"]);
const PATIENCE_S = 120;
const OUTAGE_S = 2; // between two checks of a server that does not answer

/** Take the key for changes from the address that the server prints; the part after # never leaves the browser. */
function takeKey() {
  if (!location.hash.startsWith("#key=")) return;
  sessionStorage.setItem("key", location.hash.slice("#key=".length));
  history.replaceState(null, "", location.pathname);
}
takeKey();
addEventListener("hashchange", takeKey);

/** Reports waiting: "wait" with a sentence in `detail`, and "go" when it is over. */
export const waits = new EventTarget();

/** An error from the server, as a sentence. */
export class ApiError extends Error {
  constructor(message, status = 0, code = null, retryAfter = null) {
    super(message);
    Object.assign(this, { status, code, retryAfter });
  }
}

/**
 * Returns the JSON of an answer.
 *
 * `body` makes it a POST. `exact` keeps numbers that JavaScript cannot represent, such as long ids in metadata, as they
 * were written, if the browser can, so that they can be sent back unchanged.
 */
export async function ask(path, { body, method = body ? "POST" : "GET", signal, exact = false } = {}) {
  const text = await askText(path, { body, method, signal });
  return exact ? JSON.parse(text, asWritten) : JSON.parse(text);
}

/** Returns the text of an answer. */
export async function askText(path, { body, method = "GET", signal } = {}) {
  const key = sessionStorage.getItem("key");
  const request = { method, signal, credentials: "same-origin", headers: key ? { authorization: `Bearer ${key}` } : {} };
  if (body) {
    request.body = JSON.stringify(body);
    request.headers["content-type"] = "application/json";
  }
  const began = Date.now();
  let waited = false;
  try {
    for (;;) {
      const response = await send(path, request);
      if (response.ok) return await response.text();
      const error = await errorOf(response);
      const late = Date.now() - began > PATIENCE_S * 1000;
      if (!AGAIN.has(error.code) || late) throw error;
      const seconds = error.retryAfter ?? 1;
      waited = true;
      waits.dispatchEvent(new CustomEvent("wait", { detail: `${error.message}. Retrying in ${seconds} s…` }));
      await pause(seconds, signal);
    }
  } finally {
    if (waited) waits.dispatchEvent(new Event("go"));
  }
}

/** Resolves when the server answers again; rejects when `signal` aborts. */
export async function whenBack(signal) {
  for (;;) {
    await pause(OUTAGE_S, signal);
    if (await fetch("./live", { signal }).then((response) => response.ok, () => false)) return;
  }
}

async function send(path, request) {
  try {
    return await fetch(`.${path}`, request);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server does not answer; check that it is running, and try again.");
  }
}

async function errorOf(response) {
  const content = await response.json().catch(() => ({}));
  const { message, code } = content.error ?? {};
  const retryAfter = Number.parseInt(response.headers.get("retry-after") ?? "", 10) || null;
  const again = retryAfter && !AGAIN.has(code) ? `; try again in ${retryAfter} s` : "";
  const text = message ?? content.message ?? `the server answered ${response.status}`;
  return new ApiError(text[0].toUpperCase() + text.slice(1) + again, response.status, code, retryAfter);
}

function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    });
  });
}

function asWritten(_, value, context) {
  const lost = typeof value === "number" && context?.source && Number.isFinite(value) && String(value) !== context.source;
  return lost && JSON.rawJSON ? JSON.rawJSON(context.source) : value;
}
