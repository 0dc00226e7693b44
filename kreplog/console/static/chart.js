// A small line chart of the last minutes, one line for each broker.

import { el } from "./dom.js";

const POINTS = 150;
const WIDTH = 260;
const HEIGHT = 60;
const COLOURS = 6;
const SVG = "http://www.w3.org/2000/svg";

// format(value): text of the highest value and of the last ones.
export function chart(title, format) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  picture.setAttribute("role", "img");
  const legend = el("small", {});
  const lines = new Map();

  return {
    element: el("figure", { class: "chart" }, el("figcaption", {}, title), picture, legend),
    // values: number or null by name.
    add(values) {
      for (const [name, value] of Object.entries(values)) {
        if (!lines.has(name)) {
          const path = document.createElementNS(SVG, "polyline");
          path.setAttribute("class", `line line-${lines.size % COLOURS}`);
          picture.append(path);
          lines.set(name, { path, points: [] });
        }
        const { points } = lines.get(name);
        points.push(value ?? 0);
        points.splice(0, points.length - POINTS);
      }
      const high = Math.max(1e-9, ...[...lines.values()].flatMap((line) => line.points));
      for (const { path, points } of lines.values()) {
        path.setAttribute("points", points.map((value, index) =>
          `${((POINTS - points.length + index) * WIDTH) / (POINTS - 1)},${HEIGHT - 2 - (value / high) * (HEIGHT - 4)}`).join(" "));
      }
      const last = Object.entries(values).map(([name, value]) => `${name}: ${value === null ? "–" : format(value)}`);
      legend.textContent = `up to ${format(high)}; ${last.join(", ")}`;
      picture.setAttribute("aria-label", `${title}: ${last.join(", ")}`);
    },
  };
}
