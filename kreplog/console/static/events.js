// The time line: elections, ISR changes, brokers that come and go, newest first.

import { clock, el, link } from "./dom.js";
import { get, state } from "./live.js";

const SHOWN = 2000;

export function events(topic) {
  const list = el("ol", { class: "events", tabindex: 0, "aria-label": "Events, newest first" });
  const earlier = el("button", { type: "button", onclick: showEarlier, hidden: true }, "Earlier events");
  let run = state.run;
  let last = -1;
  let oldest = Infinity;

  function update() {
    if (run !== state.run) {
      run = state.run;
      list.replaceChildren();
      last = -1;
      oldest = Infinity;
    }
    const newest = state.events.at(-1)?.number ?? -1;
    if (newest === last) return;
    const fresh = state.events.filter((event) => event.number > last && (!topic || (event.topic ?? topic) === topic));
    last = newest;
    if (fresh.length) oldest = Math.min(oldest, fresh[0].number);
    list.prepend(...fresh.reverse().map(item));
    while (list.children.length > SHOWN) list.lastElementChild.remove();
    earlier.hidden = !Number.isFinite(oldest) || oldest === 0;
  }

  async function showEarlier() {
    try {
      const found = (await get("/api/events", topic ? { before: oldest, topic } : { before: oldest })).events;
      if (found.length) oldest = found[0].number;
      list.append(...found.reverse().map(item));
      earlier.hidden = found.length === 0;
    } catch (error) {
      earlier.textContent = error.message;
    }
  }

  return { element: el("section", {}, el("h2", {}, "Time line"), list, earlier), update };
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
    case "controller": return `controller ${broker(event.from)} → ${broker(event.to)}${event.epoch === null ? "" : `, epoch ${event.epoch}`}`;
    case "leader": return `leader ${broker(event.from)} → ${broker(event.to)}${event.epoch === null ? "" : `, epoch ${event.epoch}`}`;
    case "unreachable": return `cannot be read: ${event.error}`;
    case "reachable": return "can be read again";
    default: return event.from === undefined ? event.kind
      : `${event.kind}: ${event.from.join(", ") || "none"} → ${event.to.join(", ") || "none"}`;
  }
}
