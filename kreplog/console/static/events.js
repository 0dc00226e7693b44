// The time line: elections, ISR changes, brokers that come and go, newest first.

import { clock, el, link } from "./dom.js";
import { state } from "./live.js";

const SHOWN = 200;

export function events(topic) {
  const list = el("ol", { class: "events", tabindex: 0, "aria-label": "Events, newest first" });
  let last = -1;

  function update() {
    const newest = state.events.at(-1)?.number ?? -1;
    if (newest === last) return;
    const fresh = state.events.filter((event) => event.number > last && (!topic || (event.topic ?? topic) === topic));
    last = newest;
    list.prepend(...fresh.reverse().slice(0, SHOWN).map(item));
    while (list.children.length > SHOWN) list.lastElementChild.remove();
  }

  return { element: el("section", {}, el("h2", {}, "Time line"), list), update };
}

function item(event) {
  return el("li", {}, el("time", { datetime: new Date(event.time_ms).toISOString() }, clock(event.time_ms)), " ",
    event.topic === undefined ? null
      : link(event.partition === undefined ? event.topic : `${event.topic}-${event.partition}`, "topic", event.topic),
    event.topic === undefined ? null : " ", words(event));
}

function words(event) {
  const broker = (id) => (id < 0 ? "none" : String(id));
  switch (event.kind) {
    case "broker gone": return `broker ${event.broker} is gone`;
    case "broker live": return `broker ${event.broker} is live`;
    case "broker silent": return `broker ${event.broker} does not respond`;
    case "broker responds": return `broker ${event.broker} responds again`;
    case "controller": return `controller ${broker(event.from)} → ${broker(event.to)}`;
    case "leader": return `leader ${broker(event.from)} → ${broker(event.to)}${event.epoch === null ? "" : `, epoch ${event.epoch}`}`;
    case "unreachable": return `cannot be read: ${event.error}`;
    case "reachable": return "can be read again";
    default: return event.from === undefined ? event.kind
      : `${event.kind}: ${event.from.join(", ") || "none"} → ${event.to.join(", ") || "none"}`;
  }
}
