// The brokers' state-change logs, newest first, filtered; where the console has the cluster's directory.

import { clock, el, setText } from "./dom.js";
import { get, state } from "./live.js";

const KINDS = [["decisions", "decisions"], ["", "all kinds"], ["problems", "problems"], ["LeaderAndIsr", "LeaderAndIsr"],
  ["StopReplica", "StopReplica"], ["UpdateMetadata", "UpdateMetadata"]];
const APART = new Set(["time_ms", "broker", "level", "message", "partition"]);

export function stateChanges() {
  const broker = el("input", { class: "narrow", type: "number", min: 0, placeholder: "broker", "aria-label": "Broker" });
  const partition = el("input", { placeholder: "partition, as events-0", "aria-label": "Partition of lines" });
  const kind = el("select", { "aria-label": "Kind of lines", onchange: () => load("") }, KINDS.map(([value, text]) => el("option", { value }, text)));
  const text = el("input", { type: "search", placeholder: "text", "aria-label": "Text of lines" });
  const note = el("p", { role: "status" });
  const list = el("ol", { class: "events", tabindex: 0, "aria-label": "State changes, newest first" });
  const more = el("button", { type: "button", hidden: true, onclick: () => { earlier = true; load(following); } }, "Earlier lines");
  const form = el("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); earlier = false; load(""); } },
    broker, partition, kind, text, el("button", {}, "Show"));
  const element = el("section", { hidden: true }, el("h2", {}, "State-change log"), form, note, list, more);
  let following = "";
  let generation = 0;
  let earlier = false; // lines are shown that a reload would drop
  let event = state.events.at(-1)?.number;

  async function load(next) {
    const begun = ++generation; // late answers of earlier ones are dropped
    try {
      const found = await get("/api/state-changes", { broker: broker.value, partition: partition.value, kind: kind.value, text: text.value, next });
      if (begun !== generation || !found.lines) return;
      if (!next) list.replaceChildren();
      list.append(...found.lines.map(item));
      following = found.next;
      const searched = found.searched_ms === null ? [] : [`searched back to ${new Date(found.searched_ms).toISOString()}`];
      setText(note, [...found.notes, ...searched, ...(list.children.length ? [] : ["no such lines"])].join("; "));
      more.hidden = !following;
      element.hidden = false;
    } catch (error) {
      if (begun === generation) setText(note, error.message);
    }
  }

  // What changed is in the logs, too.
  function update() {
    const newest = state.events.at(-1)?.number;
    if (newest === event) return;
    event = newest;
    if (!earlier) load("");
  }

  load("");
  return { element, update };
}

function item(line) {
  const facts = Object.entries(line).filter(([name]) => !APART.has(name)).map(([name, value]) => `${name} ${Array.isArray(value) ? value.join(",") : value}`);
  const bad = line.level === "warning" || line.level === "error";
  return el("li", { class: bad ? "bad" : "" }, el("time", { datetime: new Date(line.time_ms).toISOString() }, `${new Date(line.time_ms).toISOString().slice(0, 10)} ${clock(line.time_ms)}`),
    ` broker ${line.broker} `, [line.partition, line.message, ...facts].filter(Boolean).join(", "));
}
