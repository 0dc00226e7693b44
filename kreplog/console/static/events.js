// The time line: elections, ISR changes, brokers that come and go, newest first.

import { clock, counted, el, link, number } from "./dom.js";
import { get, state } from "./live.js";
import { aroundAddress } from "./replays.js";

const SHOWN = 2000;
const TOPICS = 6; // that an event names, and so many ranges of partitions of each
const RANGES = 12;

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
    const fresh = state.events.filter((event) => event.number > last && (topic === null || concerns(event, topic)));
    last = newest;
    if (fresh.length) oldest = Math.min(oldest, fresh[0].number);
    list.prepend(...fresh.reverse().map((event) => item(event, topic)));
    while (list.children.length > SHOWN) list.lastElementChild.remove();
    earlier.hidden = !Number.isFinite(oldest) || oldest === 0;
  }

  async function showEarlier() {
    try {
      const found = (await get("/api/events", topic === null ? { before: oldest } : { before: oldest, topic })).events;
      if (found.length) oldest = found[0].number;
      list.append(...found.reverse().map((event) => item(event, topic)));
      earlier.hidden = found.length === 0;
    } catch (error) {
      earlier.textContent = error.message;
    }
  }

  return { element: el("section", {}, el("h2", {}, "Time line"), list, earlier), update };
}

// Whether it is about this topic, or about brokers.
function concerns(event, topic) {
  return event.partitions ? Object.hasOwn(event.partitions, topic) : (event.topic ?? topic) === topic;
}

// topic: whose view it is, null for that of the cluster.
function item(event, topic) {
  const places = Object.entries(event.partitions ?? (event.topic === undefined ? {} : { [event.topic]: [] }))
    .filter(([name]) => topic === null || name === topic);
  const links = places.slice(0, TOPICS).flatMap(([name, numbers], index) => [index ? "; " : ": ", link(name, "topic", name), ranges(numbers)]);
  const more = places.length > TOPICS ? `; and ${counted(places.length - TOPICS, "more topic")}` : "";
  return el("li", {}, el("time", { datetime: new Date(event.time_ms).toISOString() }, clock(event.time_ms)), " ", event.text, links, more,
    state.overview?.log_replays ? [" ", el("a", { href: aroundAddress(event.time_ms), title: "What the brokers logged around this time, step by step" }, "replay")] : null);
}

// Numbers that ascend, such as 0-3, 7.
function ranges(numbers) {
  const found = [];
  for (const each of numbers) {
    if (found.at(-1)?.[1] === each - 1) found.at(-1)[1] = each;
    else found.push([each, each]);
  }
  const texts = found.slice(0, RANGES).map(([first, last]) => (first === last ? String(first) : `${first}-${last}`));
  if (found.length > RANGES) texts.push(`… (${number(numbers.length)} partitions)`);
  return texts.length ? ` ${texts.join(", ")}` : "";
}
