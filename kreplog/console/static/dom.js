// Elements are made from values alone, never from markup: text stays text, whatever is in it.

export function el(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

// Replace the children only where their text differs, so that focus and selection stay.
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function number(value) {
  return value === null || value === undefined ? "–" : value.toLocaleString("en");
}

// A number of things, such as 1 partition or 2,000 partitions.
export function counted(value, noun) {
  return `${number(value)} ${noun}${value === 1 ? "" : "s"}`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) { value /= 1024; unit++; }
  return `${value.toFixed(unit && value < 100 ? 1 : 0)} ${units[unit]}`;
}

// A time span: the two units that matter.
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const units = [["d", 86400], ["h", 3600], ["min", 60], ["s", 1]];
  const seconds = Math.floor(ms / 1000);
  const first = units.findIndex(([, size]) => seconds >= size);
  const [[name, size], next] = [units[first], units[first + 1]];
  const rest = next ? Math.floor((seconds % size) / next[1]) : 0;
  return `${Math.floor(seconds / size)} ${name}${rest ? ` ${rest} ${next[0]}` : ""}`;
}

export function clock(timeMs) {
  const text = new Date(timeMs).toISOString();
  return `${text.slice(11, 23)}Z`;
}

export function table(headings, rows, caption) {
  return el("div", { class: "scroll" }, el("table", {},
    caption ? el("caption", {}, caption) : null,
    el("thead", {}, el("tr", {}, headings.map((heading) => el("th", { scope: "col" }, heading)))),
    el("tbody", {}, rows)));
}

export function row(...cells) {
  return el("tr", {}, cells.map((cell) => el("td", {}, cell)));
}

export function link(text, ...path) {
  return el("a", { href: address(...path) }, text);
}

export function address(...path) {
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}`;
}
