"use strict";
// A replay, step by step. Data: the lines of the element #replay, in the format that kreplog.replay describes. The view
// shows `state(step)` and nothing else; `window.replay` has the same for tests and the curious. Texts of the data reach
// the page as textContent only.

const ROW = 22; // pixels, as in page.css
const MOST_CELLS = 10;
const MOST_LETTERS = 4; // of a value in a cell; a longer one is in its title
const BUCKET = 64; // rows
const MOST_PANELS = 40; // partitions whose logs are shown at a time
const CLIENTS = "clients"; // the column of all that are no brokers

const element = (id) => document.getElementById(id);

function made(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

// Data

// A value that changes at steps.
class History {
  constructor(initial) {
    this.steps = [-1];
    this.values = [initial];
  }
  set(step, value) {
    if (this.steps.at(-1) === step) this.values[this.values.length - 1] = value;
    else this.steps.push(step), this.values.push(value);
  }
  get last() {
    return this.values.at(-1);
  }
  at(step) {
    return this.values[lowerBound(this.steps.length, (index) => this.steps[index] > step) - 1];
  }
}

// The first index below `length` at which `holds` is true, `length` if it is nowhere; it stays true from there on.
function lowerBound(length, holds) {
  let low = 0;
  let high = length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

const lines = element("replay").textContent.split("\n").filter((line) => line.trim());
const header = JSON.parse(lines[0]);
const events = lines.slice(1).map((line) => JSON.parse(line));
const began = header.began ? Date.parse(header.began) : null; // milliseconds since 1970, if time is not virtual
const brokers = header.brokers;
const partitions = header.partitions;
const statuses = new Map(brokers.map((id) => [id, new History("unknown")]));
const stored = new Map(partitions.map((name) => [name, new History(null)]));
const replicas = new Map(partitions.map((name) => [name, new Map(brokers.map((id) => [id, new History(null)]))]));
const controllers = new History(-1);
const violations = new History([]);
const captions = new History("");

// The next version of a replica. Its records are shared with earlier versions: `end` says how many of them it has.
function nextReplica(before, change) {
  if (change.role === "none") return null;
  if (change.end === undefined) return { role: change.role, leader_epoch: change.leader_epoch };
  const added = change.records || [];
  const from = change.end - added.length;
  let { first, records } = before?.records ? before : { first: change.start, records: [] };
  if (added.length) {
    if (from < first || from > first + records.length) {
      first = from;
      records = [];
    } else if (from < first + records.length) {
      records = records.slice(0, from - first);
    }
    for (const record of added) records.push(record);
  }
  const { role, leader_epoch, start, end, high_watermark } = change;
  return { role, leader_epoch, start, end, high_watermark, first, records };
}

function apply(step, change) {
  if (change.violation !== undefined) {
    violations.set(step, [...violations.last, change.violation]);
  } else if (change.controller !== undefined) {
    controllers.set(step, change.controller);
  } else if (change.status !== undefined) {
    statuses.get(change.broker).set(step, change.status);
  } else if (change.broker !== undefined) {
    const history = replicas.get(change.partition).get(change.broker);
    history.set(step, nextReplica(history.last, change));
  } else {
    const { leader, leader_epoch, isr, elr } = change;
    stored.get(change.partition).set(step, change.deleted ? null : { leader, leader_epoch, isr, elr });
  }
}

events.forEach((event, step) => {
  if (event.kind === "comment") captions.set(step, event.text);
  for (const change of event.changes || []) apply(step, change);
});

function shownReplica(version) {
  if (version === null || version.end === undefined) return version;
  const { role, leader_epoch, start, end, high_watermark, first, records } = version;
  return { role, leader_epoch, start, end, high_watermark, first: Math.max(first, start),
    records: records.slice(Math.max(start - first, 0), Math.max(end - first, 0)) };
}

// All that is known after the event with that number.
function state(step) {
  const found = { step, at: events[step].at, controller: controllers.at(step), violated: violations.at(step),
    brokers: {}, partitions: {}, logs: {} };
  for (const id of brokers) found.brokers[id] = statuses.get(id).at(step);
  for (const name of partitions) {
    found.partitions[name] = stored.get(name).at(step);
    found.logs[name] = {};
    for (const id of brokers) found.logs[name][id] = shownReplica(replicas.get(name).get(id).at(step));
  }
  return found;
}

// Filters: the steps that have a row, and the arrows between rows

const ALWAYS = new Set(["comment", "fault", "admin", "checker", "violation"]);
const chosen = { partition: "", broker: "", text: "", idle: false, hidden: new Set() };
let rows = [];
let arrows = []; // {step, from, to, lost}: rows, as fractions
let buckets = [];

function passes(event) {
  if (chosen.hidden.has(event.kind) || (event.idle && !chosen.idle)) return false;
  const named = event.partitions || [];
  const always = ALWAYS.has(event.kind);
  if (chosen.partition && !named.includes(chosen.partition) && !(always && named.length === 0)) return false;
  if (chosen.broker && !always) {
    const host = `b${chosen.broker}`;
    if (String(event.broker) !== chosen.broker && event.source !== host && event.target !== host) return false;
  }
  return !chosen.text || described(event).toLowerCase().includes(chosen.text);
}

function described(event) {
  if (event.kind !== "message") return `${event.actor || ""} ${event.text || ""}`;
  const lost = event.until !== undefined ? "" : began === null ? " (lost)" : " (not logged as received)";
  return `${event.source} → ${event.target} ${event.label}${lost}: ${event.text || ""}`;
}

function filter() {
  rows = [];
  events.forEach((event, step) => passes(event) && rows.push(step));
  arrows = [];
  rows.forEach((step, row) => {
    const event = events[step];
    if (event.kind !== "message") return;
    const lost = event.until === undefined;
    const next = lost ? row + 1 : lowerBound(rows.length, (index) => events[rows[index]].at >= event.until);
    const exact = next < rows.length && events[rows[next]].at === event.until;
    arrows.push({ step, from: row, to: Math.max(exact ? next : next - 0.5, row + 0.6), lost });
  });
  buckets = Array.from({ length: Math.ceil(rows.length / BUCKET) + 1 }, () => []);
  for (const arrow of arrows) {
    const last = Math.min(Math.floor(arrow.to / BUCKET), buckets.length - 1);
    for (let index = Math.floor(arrow.from / BUCKET); index <= last; index++) buckets[index].push(arrow);
  }
  element("count").textContent = `${rows.length.toLocaleString("en")} of ${events.length.toLocaleString("en")} events`;
  element("space").style.height = `${rows.length * ROW}px`;
  drawnRows = "";
  show();
}

function rowOf(step) {
  return lowerBound(rows.length, (index) => rows[index] > step) - 1;
}

// Position and playback

let current = 0;
let playing = 0;

function go(step) {
  if (events.length === 0) return;
  current = Math.min(Math.max(step, 0), events.length - 1);
  show();
  reveal();
}

function move(by) {
  if (rows.length === 0) return;
  const row = rowOf(current);
  const exact = row >= 0 && rows[row] === current;
  const next = by > 0 || exact ? row + by : row;
  if (by > 0 && next >= rows.length) pause();
  go(rows[Math.min(Math.max(next, 0), rows.length - 1)]);
}

function jump(kinds, direction) {
  for (let row = rowOf(current) + direction; row >= 0 && row < rows.length; row += direction) {
    if (kinds.includes(events[rows[row]].kind) && rows[row] !== current) return go(rows[row]);
  }
}

const violated = events.findIndex((event) => (event.changes || []).some((change) => change.violation !== undefined));

function play() {
  playing = setInterval(() => move(1), 1000 / Number(element("speed").value));
  showPlaying();
}

function pause() {
  clearInterval(playing);
  playing = 0;
  showPlaying();
}

function showPlaying() {
  const button = element("play");
  button.textContent = playing ? "❚❚" : "▶";
  button.setAttribute("aria-pressed", String(Boolean(playing)));
  element("detail").setAttribute("aria-live", playing ? "off" : "polite");
}

// View: what the state of the current event is

// Virtual time in seconds, or the time of day in UTC.
function seconds(us, digits = 6) {
  if (began !== null) return new Date(began + us / 1000).toISOString().slice(11, 23);
  return `${(us / 1e6).toFixed(digits)}${digits === 6 ? " s" : ""}`;
}

function show() {
  if (events.length === 0) return;
  const now = state(current);
  const event = events[current];
  element("slider").value = String(current);
  element("slider").setAttribute("aria-valuetext", `event ${current + 1}, ${seconds(now.at)}`);
  element("clock").textContent = `${current + 1} / ${events.length}   ${seconds(now.at)}`;
  element("detail").replaceChildren(made("strong", "", `${seconds(now.at)} `), described(event));
  if (event.kind === "message" && event.until !== undefined) {
    element("detail").append(` — on its way for ${((event.until - event.at) / 1000).toFixed(2)} ms`);
  }
  element("caption").textContent = captions.at(current);
  showLogs(now);
  showColumns(now);
  showGuarantees(now);
  draw();
}

const logPanels = new Map();
let panelNames = "";

// The partitions that exist, those of the current event first if there are too many.
function panelsOf(now) {
  if (chosen.partition) return [chosen.partition];
  const existing = partitions.filter((name) => now.partitions[name] !== null
    || brokers.some((id) => now.logs[name][id] !== null));
  if (existing.length <= MOST_PANELS) return existing;
  const named = new Set(events[current].partitions || []);
  const first = existing.filter((name) => named.has(name));
  return [...first, ...existing.filter((name) => !named.has(name))].slice(0, MOST_PANELS);
}

function showLogs(now) {
  const names = panelsOf(now);
  if (panelNames !== names.join(" ")) {
    panelNames = names.join(" ");
    element("logs").replaceChildren(...names.map((name) => panelOf(name).node));
  }
  for (const name of names) {
    const panel = panelOf(name);
    const inStore = now.partitions[name];
    const text = inStore === null ? "not in the store" : `leader ${inStore.leader < 0 ? "none" : inStore.leader}, `
      + `epoch ${inStore.leader_epoch}, ISR ${inStore.isr.join(" ") || "none"}`
      + (inStore.elr.length ? `, ELR ${inStore.elr.join(" ")}` : "");
    if (panel.about.textContent !== text) panel.about.textContent = text;
    for (const id of brokers) showReplica(panel.replicas.get(id), id, now.logs[name][id], now.brokers[id]);
  }
}

function showReplica(panel, id, replica, status) {
  const visible = replica !== null && (chosen.broker === "" || chosen.broker === String(id));
  panel.node.hidden = !visible;
  const key = visible ? JSON.stringify([replica, status]) : "";
  if (!visible || panel.key === key) return;
  panel.key = key;
  const { role, leader_epoch, start, end, high_watermark, records, first } = replica;
  const up = status === "up";
  const title = up ? (role === "closed" ? "log closed" : `${role}, epoch ${leader_epoch}`) : status;
  panel.node.className = `replica ${up ? role : "absent"}`;
  panel.role.textContent = `b${id} ${title}`;
  panel.cells.hidden = end === undefined;
  if (end === undefined) return;
  panel.cells.setAttribute("aria-label",
    `broker ${id}, ${title}: offsets ${start} to ${end}, high watermark ${high_watermark}`);
  const cells = [];
  const from = Math.max(start, Math.min(end, high_watermark + MOST_CELLS / 2, end) - MOST_CELLS, first);
  if (from > 0) cells.push(made("span", "mark", from === start ? `${start}` : `${start}…${from}`));
  const mark = () => {
    const node = made("span", "mark watermark", `HW ${high_watermark}`);
    node.title = `high watermark ${high_watermark}`;
    cells.push(node);
  };
  for (let offset = from; offset < end; offset++) {
    if (offset === high_watermark) mark();
    const [epoch, value] = records[offset - first] || [0, ""];
    const node = made("span", `cell e${epoch % 8}${offset < high_watermark ? "" : " open"}`,
      value && value.length <= MOST_LETTERS ? value : String(epoch));
    node.title = `offset ${offset}, leader epoch ${epoch}, ${offset < high_watermark ? "" : "not known as "}committed`
      + (value ? `: ${value}` : "");
    cells.push(node);
  }
  if (high_watermark >= end || high_watermark < from) mark();
  const last = made("span", "mark end", `END ${end}`);
  last.title = `log end offset ${end}`;
  panel.cells.replaceChildren(...cells, last);
}

function showColumns(now) {
  columnNodes.forEach((node, id) => {
    const status = id === CLIENTS ? "up" : now.brokers[id];
    const about = now.controller === id ? "controller" : status === "up" ? "" : status;
    const text = id === CLIENTS ? CLIENTS : `b${id}\n${about}`;
    if (node.textContent !== text) node.textContent = text;
    node.className = status.split(",")[0];
  });
}

function showGuarantees(now) {
  const names = Object.keys(header.guarantees);
  names.forEach((name, index) => guaranteeNodes[index].classList.toggle("violated", now.violated.includes(name)));
  const verdict = element("verdict");
  const count = now.violated.length;
  const text = count ? `✗ violated: ${now.violated.join(", ")}` : names.length ? `${names.length} hold so far` : "";
  if (verdict.textContent !== text) verdict.textContent = text;
  verdict.classList.toggle("violated", count > 0);
}

// Time line: a canvas with columns and arrows behind rows of text, of which only the visible ones exist

let columnAt = new Map(); // x by broker, and of CLIENTS
let columnsWidth = 0;
let drawnRows = "";

function layout() {
  const width = element("scroll").clientWidth;
  const count = brokers.length + 1;
  const gap = Math.min(Math.max((width * 0.5) / count, 26), 96);
  columnsWidth = Math.round(gap * count);
  columnAt = new Map([CLIENTS, ...brokers].map((id, index) => [id, gap * (index + 0.5)]));
  columnNodes.forEach((node, id) => (node.style.left = `${columnAt.get(id)}px`));
  drawnRows = "";
  draw();
}

const xOf = (host) => columnAt.get(/^b\d+$/.test(host) ? Number(host.slice(1)) : CLIENTS) ?? columnAt.get(CLIENTS);
let frame = 0;

function draw() {
  if (!frame) frame = requestAnimationFrame(() => ((frame = 0), drawNow()));
}

function drawNow() {
  const scroll = element("scroll");
  const first = Math.max(Math.floor(scroll.scrollTop / ROW) - 2, 0);
  const last = Math.min(Math.ceil((scroll.scrollTop + scroll.clientHeight) / ROW) + 2, rows.length);
  drawRows(first, last);
  drawCanvas(scroll, first, last);
}

function drawRows(first, last) {
  const key = `${first} ${last} ${current}`;
  if (drawnRows === key) return;
  drawnRows = key;
  const box = element("rows");
  box.style.top = `${first * ROW}px`;
  const nodes = [];
  for (let row = first; row < last; row++) {
    const step = rows[row];
    const event = events[step];
    const node = made("div", `row ${event.kind}${step === current ? " current" : ""}`);
    node.id = `step-${step}`;
    node.setAttribute("role", "option");
    node.setAttribute("aria-selected", String(step === current));
    node.setAttribute("aria-posinset", String(row + 1));
    node.setAttribute("aria-setsize", String(rows.length));
    node.style.paddingLeft = `${columnsWidth + 6}px`;
    const moved = row === 0 || events[rows[row - 1]].at !== event.at;
    node.append(made("span", "time", moved ? seconds(event.at, 4) : ""));
    const actor = event.kind === "message" ? "" : `${event.actor || ""} `;
    node.append(made("span", "actor", actor), made("span", "text", described(event).slice(actor.length)));
    nodes.push(node);
  }
  box.replaceChildren(...nodes);
  const shown = rowOf(current);
  const visible = shown >= first && shown < last && rows[shown] === current;
  if (visible) element("scroll").setAttribute("aria-activedescendant", `step-${current}`);
  else element("scroll").removeAttribute("aria-activedescendant");
}

function drawCanvas(scroll, first, last) {
  const canvas = element("canvas");
  const ratio = window.devicePixelRatio || 1;
  const height = scroll.clientHeight;
  if (canvas.width !== Math.round(columnsWidth * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(columnsWidth * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.width = `${columnsWidth}px`;
    canvas.style.height = `${height}px`;
    canvas.style.marginBottom = `-${height}px`;
  }
  const pen = canvas.getContext("2d");
  const colours = getComputedStyle(document.documentElement);
  const colour = (name) => colours.getPropertyValue(`--${name}`).trim();
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, columnsWidth, height);
  const y = (row) => row * ROW - scroll.scrollTop + ROW / 2;
  drawLifelines(pen, colour, y, first, last);
  const seen = new Set();
  const lastBucket = Math.min(Math.floor(last / BUCKET), buckets.length - 1);
  for (let index = Math.floor(first / BUCKET); index <= lastBucket; index++) {
    for (const arrow of buckets[index]) {
      if (arrow.to >= first && arrow.from <= last && !seen.has(arrow)) {
        seen.add(arrow);
        drawArrow(pen, colour, y, arrow);
      }
    }
  }
  for (let row = first; row < last; row++) drawMark(pen, colour, y(row), events[rows[row]]);
}

function drawLifelines(pen, colour, y, first, last) {
  const led = chosen.partition ? stored.get(chosen.partition) : null;
  for (const [id, x] of columnAt) {
    for (let row = first; row < last; row++) {
      const status = id === CLIENTS ? "up" : statuses.get(id).at(rows[row]);
      if (status.startsWith("down")) continue;
      const leads = led !== null && led.at(rows[row])?.leader === id;
      pen.strokeStyle = colour(status === "up" || status === "unknown" ? (leads ? "accent" : "line") : "fault");
      pen.lineWidth = leads ? 5 : 2;
      pen.setLineDash(status === "up" ? [] : [4, 4]);
      pen.beginPath();
      pen.moveTo(x, y(row) - ROW / 2);
      pen.lineTo(x, y(row) + ROW / 2);
      pen.stroke();
    }
  }
  pen.setLineDash([]);
}

function drawArrow(pen, colour, y, arrow) {
  const event = events[arrow.step];
  const x0 = xOf(event.source);
  let x1 = xOf(event.target);
  if (x0 === x1) x1 = x0 + 14; // to itself, or from client to client
  const part = arrow.lost ? 0.55 : 1;
  const [x, end] = [x0 + (x1 - x0) * part, y(arrow.from) + (y(arrow.to) - y(arrow.from)) * part];
  pen.strokeStyle = pen.fillStyle = colour(arrow.step === current ? "accent" : arrow.lost ? "broken" : "muted");
  pen.lineWidth = arrow.step === current ? 3 : 1.2;
  pen.beginPath();
  pen.moveTo(x0, y(arrow.from));
  pen.lineTo(x, end);
  pen.stroke();
  const angle = Math.atan2(end - y(arrow.from), x - x0);
  pen.beginPath();
  if (arrow.lost) {
    pen.moveTo(x - 5, end - 5), pen.lineTo(x + 5, end + 5), pen.moveTo(x + 5, end - 5), pen.lineTo(x - 5, end + 5);
    pen.stroke();
  } else {
    pen.moveTo(x, end);
    pen.lineTo(x - 8 * Math.cos(angle - 0.4), end - 8 * Math.sin(angle - 0.4));
    pen.lineTo(x - 8 * Math.cos(angle + 0.4), end - 8 * Math.sin(angle + 0.4));
    pen.fill();
  }
}

function drawMark(pen, colour, y, event) {
  if (event.kind === "message") return;
  const x = columnAt.get(event.broker) ?? columnAt.get(CLIENTS);
  const name = { violation: "broken", fault: "fault", checker: "fine" }[event.kind];
  pen.fillStyle = colour(name || "text");
  if (event.kind === "client" || event.kind === "broker") {
    pen.beginPath();
    pen.arc(x, y, 4, 0, 2 * Math.PI);
    pen.fill();
  } else {
    pen.font = "14px sans-serif";
    pen.textAlign = "center";
    pen.textBaseline = "middle";
    const sign = { violation: "✗", fault: "⚡", comment: "¶", checker: "✓" }[event.kind] || "◆";
    pen.fillText(sign, event.kind === "fault" ? faultAt(event, x) : x, y);
  }
}

// A fault strikes the broker that its text names first.
function faultAt(event, otherwise) {
  const found = /\bbroker (\d+)\b/.exec(event.text || "") || /^\S+ (\d+)\b/.exec(event.text || "");
  return (found && columnAt.get(Number(found[1]))) ?? otherwise;
}

function reveal() {
  const scroll = element("scroll");
  const top = Math.max(rowOf(current), 0) * ROW;
  if (top < scroll.scrollTop + ROW || top > scroll.scrollTop + scroll.clientHeight - 2 * ROW) {
    scroll.scrollTop = top - scroll.clientHeight / 3;
  }
}

// The page

const columnNodes = new Map();
const guaranteeNodes = [];

function build() {
  document.title = element("title").textContent = header.title;
  element("about").textContent = header.about;
  if (header.command) element("command").firstChild.textContent = header.command;
  else element("command").hidden = true;
  header.notes.forEach((note) => element("notes").append(made("li", "", note)));
  document.body.classList.toggle("dated", began !== null);
  document.body.classList.toggle("unchecked", Object.keys(header.guarantees).length === 0);
  partitions.forEach((name) => element("partition").append(new Option(name, name)));
  brokers.forEach((id) => element("broker").append(new Option(`b${id}`, String(id))));
  for (const id of [CLIENTS, ...brokers]) {
    columnNodes.set(id, made("span"));
    element("columns").append(columnNodes.get(id));
  }
  for (const [name, meaning] of Object.entries(header.guarantees)) {
    const node = made("li", "", name);
    node.title = meaning;
    guaranteeNodes.push(node);
    document.querySelector("#guarantees ul").append(node);
  }
  buildKinds();
  const legend = element("legend");
  legend.append("Cells are records, coloured by leader epoch: ");
  for (let epoch = 0; epoch < 8; epoch++) legend.append(made("span", `cell e${epoch}`, String(epoch)));
  legend.append(" dashed: above the high watermark (HW) that the replica knows. END: log end.");
  element("slider").max = String(Math.max(events.length - 1, 0));
  element("violation").disabled = violated < 0;
}

// The panel of a partition's logs, made when it is first shown.
function panelOf(name) {
  if (logPanels.has(name)) return logPanels.get(name);
  const node = made("article");
  const title = made("h3", "", name);
  const about = made("span");
  title.append(about);
  const grid = made("div", "replicas");
  node.append(title, grid);
  const panels = new Map();
  for (const id of brokers) {
    const panel = { node: made("div", "replica"), role: made("div", "role"), cells: made("div", "cells"), key: "" };
    panel.cells.setAttribute("role", "img");
    panel.node.append(panel.role, panel.cells);
    grid.append(panel.node);
    panels.set(id, panel);
  }
  logPanels.set(name, { node, about, replicas: panels });
  return logPanels.get(name);
}

function buildKinds() {
  const kinds = [...new Set(events.map((event) => event.kind))];
  const box = (name, checked, change) => {
    const label = made("label");
    const input = made("input");
    input.type = "checkbox";
    input.checked = checked;
    input.name = name;
    input.addEventListener("change", () => (change(input.checked), filter()));
    label.append(input, ` ${name}`);
    element("kinds").append(label);
  };
  for (const kind of kinds) {
    box(kind, true, (checked) => (checked ? chosen.hidden.delete(kind) : chosen.hidden.add(kind)));
  }
  if (events.some((event) => event.idle)) box("idle", false, (checked) => (chosen.idle = checked));
}

function listen() {
  const click = (id, action) => element(id).addEventListener("click", action);
  const toggle = () => (playing ? pause() : play());
  click("first", () => go(rows[0] ?? 0));
  click("back", () => move(-1));
  click("play", toggle);
  click("forward", () => move(1));
  click("fault", () => jump(["fault"], 1));
  click("violation", () => go(violated));
  element("slider").addEventListener("input", () => go(Number(element("slider").value)));
  element("speed").addEventListener("change", () => playing && (pause(), play()));
  for (const id of ["partition", "broker"]) {
    element(id).addEventListener("change", () => ((chosen[id] = element(id).value), filter(), reveal()));
  }
  element("text").addEventListener("input", () => ((chosen.text = element("text").value.toLowerCase()), filter()));
  element("scroll").addEventListener("scroll", draw, { passive: true });
  element("rows").addEventListener("click", (event) => {
    const row = event.target.closest(".row");
    if (row) go(Number(row.id.slice("step-".length)));
  });
  const keys = {
    " ": toggle, ArrowRight: () => move(1), ArrowLeft: () => move(-1), ArrowDown: () => move(1),
    ArrowUp: () => move(-1), PageDown: () => move(20), PageUp: () => move(-20), Home: () => go(rows[0] ?? 0),
    End: () => go(rows.at(-1) ?? 0), f: () => jump(["fault"], 1), F: () => jump(["fault"], -1),
    v: () => violated >= 0 && go(violated), "/": () => element("text").focus(),
  };
  document.addEventListener("keydown", (event) => {
    const target = event.target;
    if (event.key === "Escape" && target === element("text")) return element("scroll").focus();
    const types = target.matches("select, input");
    const presses = target.matches("button") && event.key === " ";
    if (types || presses || event.ctrlKey || event.altKey || event.metaKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  window.addEventListener("resize", layout);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}

build();
listen();
showPlaying();
filter();
layout();
go(Number(/^#step-(\d+)$/.exec(location.hash)?.[1] ?? 0));

window.replay = { header, events, state, go, step: () => current, rows: () => [...rows] };
