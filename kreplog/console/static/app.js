// The page: the view that its address names, the health above it, and what is wrong.

import { address, link, setText } from "./dom.js";
import { start, state, lookAt } from "./live.js";
import { clusterView } from "./cluster.js";
import { topicView } from "./topic.js";
import { recordsView } from "./records.js";
import { groupsView } from "./groups.js";
import { settingsView } from "./settings.js";
import { replaysView } from "./replays.js";

const VIEWS = { cluster: clusterView, topic: topicView, records: recordsView, groups: groupsView, settings: settingsView,
  replays: replaysView };

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const health = document.getElementById("health");
const banner = document.getElementById("banner");
let view = null;
let shownViews = "";

function show() {
  const path = location.hash.replace(/^#\/?/, "").split("/").map(decode);
  const name = path[0] in VIEWS ? path[0] : "cluster";
  view?.leave?.();
  main.replaceChildren();
  lookAt(null, []);
  view = VIEWS[name](main, path.slice(1));
  shownViews = "";
  showNav(name);
  document.title = `${path.slice(0, 2).filter(Boolean).join(" ") || "cluster"} – kreplog console`;
  view.update?.();
}

// The views that the console has of what it looks at.
function showNav(name = location.hash.split("/")[1] || "cluster") {
  const views = state.overview?.views ?? [];
  if (shownViews === views.join()) return;
  shownViews = views.join();
  nav.replaceChildren(...views.map((key) => {
    const item = link(key, key);
    if (key === name) item.setAttribute("aria-current", "page");
    return item;
  }));
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

function changed() {
  if (state.overview) {
    const { views } = state.overview;
    if (!views.includes("cluster") && !location.hash.startsWith(address(views[0]))) {
      location.replace(address(views[0])); // of replays alone
      return;
    }
    setText(health, views.includes("cluster") ? state.overview.health : "");
    health.className = state.overview.problems.length ? "bad" : "good";
    showNav();
  }
  view?.update?.();
}

function problem(text) {
  setText(banner, text);
  banner.hidden = !text;
}

window.addEventListener("hashchange", show);
show();
start(changed, problem);
