// Live charts of brokers that serve metrics: traffic, request times, pauses of the event loop, CPU.

import { bytes, el, setText } from "./dom.js";
import { get } from "./live.js";
import { chart } from "./chart.js";

const EVERY_MS = 2000;
const milliseconds = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;

// Each: title, format, and the value from the figures now and before, over the seconds between them.
const CHARTS = [
  ["Produced, a second", bytes, (now, before, seconds) => (now.bytes_in - before.bytes_in) / seconds],
  ["Consumed, a second", bytes, (now, before, seconds) => (now.bytes_out - before.bytes_out) / seconds],
  ["Mean time of a Produce request", milliseconds, (now, before) => mean("produce", now, before)],
  ["Mean time of a follower's Fetch", milliseconds, (now, before) => mean("replicate", now, before)],
  ["Longest pause of the event loop since the start", milliseconds, (now) => now.longest_pause_s],
  ["CPU", (share) => `${(100 * share).toFixed(0)} %`, (now, before, seconds) => (now.cpu_s - before.cpu_s) / seconds],
];

export function brokerCharts() {
  const note = el("p", {}, "");
  const made = CHARTS.map(([title, format]) => chart(title, format));
  const box = el("div", { class: "charts" }, made.map((each) => each.element));
  const element = el("section", { hidden: true }, el("h2", {}, "Traffic and times"), note, box);
  let before = null;
  let left = false;
  let timer = null;

  async function refresh() {
    try {
      const found = await get("/api/metrics");
      const ids = Object.keys(found.brokers);
      element.hidden = ids.length === 0;
      const failed = ids.filter((id) => found.brokers[id].error).map((id) => `broker ${id}: ${found.brokers[id].error}`);
      setText(note, failed.join("; "));
      if (before && found.time_ms > before.time_ms) {
        CHARTS.forEach(([, , value], index) => made[index].add(Object.fromEntries(ids.map((id) => [id,
          known(value, found.brokers[id], before.brokers[id], (found.time_ms - before.time_ms) / 1000)]))));
      }
      before = found;
    } catch (error) {
      setText(note, error.message);
    }
    if (!left) timer = setTimeout(refresh, EVERY_MS);
  }

  refresh();
  return { element, leave() { left = true; clearTimeout(timer); } };
}

// A broker that was started again begins its counters at 0.
function known(value, now, before, seconds) {
  if (!before || now.error || before.error) return null;
  const found = value(now, before, seconds);
  return Number.isFinite(found) && found >= 0 ? found : null;
}

function mean(name, now, before) {
  const count = now[`${name}_count`] - before[`${name}_count`];
  return count > 0 ? (now[`${name}_sum`] - before[`${name}_sum`]) / count : 0;
}
