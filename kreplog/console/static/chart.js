// A small line chart over time.

import { el } from "./dom.js";

const WIDTH = 260;
const HEIGHT = 60;
const COLOURS = 6;
const SVG = "http://www.w3.org/2000/svg";

// format(value): text of the highest value and of the last ones.
export function chart(title, format) {
  const picture = document.createElementNS(SVG, "svg");
  picture.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", title);
  const legend = el("small", {});

  return {
    element: el("figure", { class: "chart" }, el("figcaption", {}, title), picture, legend),
    // lines: by name, a number or null for each of the times.
    draw(timesMs, lines) {
      const all = Object.entries(lines);
      const high = Math.max(0, ...all.map(([, values]) => highest(values)));
      const span = Math.max(1, timesMs.at(-1) - timesMs[0]);
      const x = (index) => ((timesMs[index] - timesMs[0]) / span) * WIDTH;
      const y = (value) => HEIGHT - 2 - (value / (high || 1)) * (HEIGHT - 4);
      while (picture.children.length < all.length) picture.append(document.createElementNS(SVG, "path"));
      while (picture.children.length > all.length) picture.lastElementChild.remove();
      all.forEach(([, values], index) => {
        picture.children[index].setAttribute("class", `line line-${index % COLOURS}`);
        picture.children[index].setAttribute("d", values.map((value, at) => (value === null ? ""
          : `${at === 0 || values[at - 1] === null ? "M" : "L"}${x(at).toFixed(1)} ${y(value).toFixed(1)}`)).join(""));
      });
      const texts = all.map(([name, values]) => `${name}: ${values.at(-1) === null ? "–" : format(values.at(-1))}`);
      legend.replaceChildren(`up to ${format(high)}; `, ...texts.flatMap((text, index) => [index ? ", " : "",
        el("span", { class: `key key-${index % COLOURS}`, "aria-hidden": "true" }), text]));
      picture.setAttribute("aria-label", `${title}: ${texts.join(", ")}`);
    },
  };
}

function highest(values) {
  return values.reduce((most, value) => Math.max(most, value ?? 0), 0);
}
