// A list of any length, of which only the rows in view are elements.

import { el } from "./dom.js";

const MARGIN = 4;

// make(): an empty row; fill(row, item): shows an item in it; onVisible(items): called when others come into view.
export function virtualList(rowHeight, make, fill, onVisible, label) {
  const inner = el("div", { class: "inner", role: "presentation" });
  const box = el("div", { class: "virtual", tabindex: 0, role: "group", "aria-label": label, onscroll: render }, inner);
  const pool = [];
  let items = [];

  function render() {
    const first = Math.max(0, Math.floor(box.scrollTop / rowHeight) - MARGIN);
    const count = Math.ceil((box.clientHeight || 600) / rowHeight) + 2 * MARGIN;
    const visible = items.slice(first, first + count);
    while (pool.length < visible.length) {
      pool.push(make());
      inner.append(pool.at(-1));
    }
    pool.forEach((element, index) => {
      element.hidden = index >= visible.length;
      if (element.hidden) return;
      element.style.top = `${(first + index) * rowHeight}px`;
      fill(element, visible[index]);
    });
    onVisible(visible);
  }

  const observer = new ResizeObserver(render);
  observer.observe(box);
  return {
    element: box,
    show(found) {
      items = found;
      inner.style.height = `${items.length * rowHeight}px`;
      box.style.setProperty("--rows-height", `${items.length * rowHeight}px`);
      render();
    },
    leave: () => observer.disconnect(),
  };
}
