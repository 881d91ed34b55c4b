// Starts the page: models, views, theme.

import { ApiError, ask, waits } from "./api.js";
import * as catalogue from "./catalogue.js";
import * as chat from "./chat.js";
import { el, get, sentence } from "./dom.js";
import { detect } from "./feedback.js";
import * as figures from "./figures.js";

const VIEWS = { chat: "Chat", catalogue: "Catalogue", figures: "Figures" };
let routes = new Set();
let ready = false;

waits.addEventListener("wait", ({ detail }) => sentence(get("banner"), detail));
waits.addEventListener("go", () => sentence(get("banner"), null));

async function start() {
  chat.start();
  catalogue.start(chat.refresh);
  theme();
  get("skip").addEventListener("click", (event) => {
    event.preventDefault(); // the URL's hash selects a view
    get("main").focus();
  });
  get("refresh").addEventListener("click", () => figures.show(routes));
  get("model").addEventListener("change", choose);
  addEventListener("hashchange", view);
  view();
  await open();
}

/** Load the list of models once the server is ready. */
async function open() {
  try {
    await ask("/ready");
    const [{ data: models }, { paths }] = await Promise.all([ask("/v1/models"), ask("/openapi.json")]);
    routes = new Set(Object.keys(paths));
    detect(routes);
    models.sort((a, b) => (a.kind === "model") - (b.kind === "model")); // indexes first
    chat.offer(models);
    get("model").replaceChildren(...models.map((model) => el("option", { value: model.id }, model.kind === "model" ? `${model.id} (ranks lists)` : model.id)));
    get("model").models = models;
    ready = true;
    choose();
    view();
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    sentence(get("banner"), error.message);
    get("banner").append(" ", el("button", { type: "button", onclick: () => location.reload() }, "Try again"));
  }
}

function choose() {
  const chosen = get("model").models.find((model) => model.id === get("model").value);
  catalogue.use(chosen);
  chat.use(chosen.id);
  if (!get("view-catalogue").hidden) catalogue.load();
}

/** Show the view that the URL names. */
function view() {
  const name = Object.hasOwn(VIEWS, location.hash.slice(1)) ? location.hash.slice(1) : "chat";
  for (const other of Object.keys(VIEWS)) get(`view-${other}`).hidden = other !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.hash === `#${name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${VIEWS[name]} – polyrank`;
  if (!ready) return;
  if (name === "catalogue") catalogue.load();
  if (name === "figures") figures.show(routes);
}

function theme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ?? (system.matches ? "dark" : "light")) === "dark";
  const shown = () => get("theme").setAttribute("aria-pressed", String(isDark()));
  get("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try {
      localStorage.setItem("theme", root.dataset.theme);
    } catch {
      // storage is disabled; the theme lasts until the page is closed
    }
    shown();
  });
  system.addEventListener("change", shown);
  shown();
}

start();
