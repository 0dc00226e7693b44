// Live charts of brokers that serve metrics: traffic, request times, pauses of the event loop, CPU.

import { bytes, el, setText } from "./dom.js";
import { get } from "./live.js";
import { chart } from "./chart.js";

const EVERY_MS = 2000;
const POINTS = 150;
const milliseconds = (seconds) => `${(1000 * seconds).toFixed(1)} ms`;

// Each: title, format, and the name of the figure.
const CHARTS = [
  ["Produced, a second", bytes, "bytes_in_per_s"],
  ["Consumed, a second", bytes, "bytes_out_per_s"],
  ["Mean time of a Produce request", milliseconds, "produce_mean_s"],
  ["Mean time of a follower's Fetch", milliseconds, "replicate_mean_s"],
  ["Longest pause of the event loop since the start", milliseconds, "longest_pause_s"],
  ["CPU", (share) => `${(100 * share).toFixed(0)} %`, "cpu_share"],
];

export function brokerCharts() {
  const note = el("p", {}, "");
  const made = CHARTS.map(([title, format]) => chart(title, format));
  const box = el("div", { class: "charts" }, made.map((each) => each.element));
  const element = el("section", { hidden: true }, el("h2", {}, "Traffic and times"), note, box);
  const reads = [];
  let left = false;
  let timer = null;

  async function refresh() {
    try {
      const found = await get("/api/metrics");
      const ids = Object.keys(found.brokers);
      element.hidden = ids.length === 0;
      const failed = ids.filter((id) => found.brokers[id].error).map((id) => `broker ${id}: ${found.brokers[id].error}`);
      setText(note, failed.join("; "));
      if (found.time_ms > (reads.at(-1)?.time_ms ?? 0)) {
        reads.push(found);
        reads.splice(0, reads.length - POINTS);
        const times = reads.map((read) => read.time_ms);
        CHARTS.forEach(([, , figure], index) => made[index].draw(times, Object.fromEntries(
          ids.map((id) => [id, reads.map((read) => read.brokers[id]?.[figure] ?? null)]))));
      }
    } catch (error) {
      setText(note, error.message);
    }
    if (!left) timer = setTimeout(refresh, EVERY_MS);
  }

  refresh();
  return { element, leave() { left = true; clearTimeout(timer); } };
}
