// Replays: seeds and lessons of the simulator, what the brokers logged, and traces; one of them step by step in a frame.

import { address, duration, el, link, setText } from "./dom.js";
import { get, post } from "./live.js";

const TRACE_MS = 1000;
const LEAD_MS = 10_000; // before an event of which one wants to know more, and after it
const TAIL_MS = 20_000;

let opened = false; // the seed that the console was started with is shown first

export function replaysView(main, [kind, ...names]) {
  return kind === undefined || kind === "topic" ? list(main, names[0] ?? "") : player(main, kind, names);
}

// Where what the brokers logged around a time is replayed.
export function aroundAddress(timeMs) {
  const [since, until] = [timeMs - LEAD_MS, timeMs + TAIL_MS].map((ms) => new Date(ms).toISOString().slice(0, 19));
  return address("replays", "logs", since, until);
}

// One replay, in a frame: its page is a file by itself, which loads nothing.
function player(main, kind, names) {
  opened = true;
  const note = el("p", { role: "status" }, kind === "trace" ? "" : "It is being made, which may take some seconds …");
  const save = el("a", { hidden: true }, "save as a file");
  main.append(el("h1", { class: "tools" }, title(kind, names), el("small", {}, link("all replays", "replays")), el("small", {}, save)), note);
  let left = false;

  async function load() {
    try {
      const page = kind === "trace" ? names[0] : (await get("/api/replays/page", parameters(kind, names))).page;
      if (left) return;
      setText(note, "");
      note.hidden = true;
      const path = `/replays/${encodeURIComponent(page)}`;
      save.setAttribute("href", path);
      save.setAttribute("download", `${["replay", kind, ...names].filter(Boolean).join("-").replace(/[^\w.-]+/g, "-")}.html`);
      save.hidden = false;
      const frame = el("iframe", { class: "replay", title: title(kind, names), src: path, sandbox: "allow-scripts" });
      frame.addEventListener("load", () => frame.contentWindow.focus()); // its keys work at once
      main.append(frame);
    } catch (error) {
      setText(note, error.message);
    }
  }

  load();
  return { leave() { left = true; } };
}

function parameters(kind, names) {
  return kind === "logs" ? { since: names[0] ?? "", until: names[1] ?? "" } : { [kind]: names[0] ?? "" };
}

function title(kind, names) {
  if (kind === "seed") return `Seed ${names[0]} of the simulator`;
  if (kind === "lesson") return `Lesson ${names[0]}`;
  if (kind === "logs") return `What the brokers logged${names[0] ? ` from ${names[0]}` : ""}${names[1] ? ` to ${names[1]}` : ""} UTC`;
  return "A trace";
}

function list(main, topic) {
  const note = el("p", { role: "status" });
  const cluster = el("div", {});
  const seed = el("input", { type: "number", min: 0, class: "narrow", value: 0, "aria-label": "Seed" });
  const lessons = el("section", {});
  const simulated = el("section", {}, el("h2", {}, "A seed of the simulator"),
    el("p", {}, "A cluster in virtual time under random faults, with every message and every log; the guarantees are checked."),
    el("form", { class: "tools", onsubmit: (event) => go(event, "seed", seed.value) }, el("label", {}, "Seed ", seed), el("button", {}, "Replay")));
  main.append(el("h1", {}, "Replays"), note, cluster, simulated, lessons);
  const traces = el("ul", { class: "traces" });
  let timer = null;
  let left = false;
  let first = true;

  async function refresh() {
    clearTimeout(timer);
    try {
      const found = await get("/api/replays");
      if (left) return;
      if (first) {
        first = false;
        if (found.seed !== null) {
          seed.value = found.seed;
          if (!opened) {
            location.replace(address("replays", "seed", String(found.seed)));
            return;
          }
        }
        if (found.logs) cluster.append(logged());
        if (found.trace) cluster.append(traced(topic));
        lessons.append(el("h2", {}, "Lessons"),
          el("p", {}, "Small clusters of the simulator that go through one failure each, with comments."),
          ...found.lessons.map(({ group, lessons: each }) => el("section", {}, el("h3", {}, group),
            el("ul", {}, each.map((lesson) => el("li", {}, link(lesson.title, "replays", "lesson", lesson.name), `: ${lesson.sentence}`))))));
      }
      traces.replaceChildren(...found.traces.map(traceItem));
      if (found.traces.some(runs)) timer = setTimeout(refresh, TRACE_MS);
    } catch (error) {
      setText(note, error.message);
    }
  }

  function logged() {
    const [since, until] = ["From", "until"].map((label) => el("input", { type: "datetime-local", step: 1, "aria-label": `${label}, UTC` }));
    return el("section", {}, el("h2", {}, "What the brokers logged"),
      el("p", {}, "Elections, ISR changes and the controllers' requests, of running brokers and of those that are down. The time line of the cluster leads here, too."),
      el("form", { class: "tools", onsubmit: (event) => go(event, "logs", since.value, until.value) },
        el("label", {}, "From ", since), el("label", {}, " until ", until), " UTC ", el("button", {}, "Replay")));
  }

  function traced(name) {
    const topics = el("input", { value: name, placeholder: "topics", "aria-label": "Topics to trace" });
    const seconds = el("input", { type: "number", min: 1, max: 600, value: 30, class: "narrow", "aria-label": "Seconds" });
    return el("section", {}, el("h2", {}, "A trace from now on"),
      el("p", {}, "Leaders, ISRs and the offsets of each replica, five times a second, of topics of 50 partitions together at most; begin it, then fail something."),
      el("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); change("start", { topics: topics.value, seconds: seconds.value }); } },
        topics, el("label", {}, seconds, " seconds"), el("button", {}, "Begin")), traces);
  }

  function traceItem(trace) {
    const name = `${trace.topics.join(" ")}, ${duration(1000 * trace.seconds)}`;
    if (trace.page) return el("li", {}, link(`trace ${trace.number} of ${name}`, "replays", "trace", trace.page));
    const about = el("span", {}, `trace ${trace.number} of ${name}: ${trace.error || `${trace.elapsed_s} s so far `}`);
    const stop = el("button", { type: "button", onclick: () => change("stop", { number: String(trace.number) }) }, "Stop");
    return el("li", {}, about, runs(trace) ? stop : null);
  }

  async function change(name, given) {
    setText(note, "");
    try {
      await post(`/api/traces/${name}`, { parameters: given, confirm: null });
    } catch (error) {
      setText(note, error.message);
    }
    if (!left) await refresh();
  }

  refresh();
  return { leave() { left = true; clearTimeout(timer); } };
}

function runs(trace) {
  return !trace.page && !trace.error;
}

function go(event, ...path) {
  event.preventDefault();
  location.hash = address("replays", ...path);
}
