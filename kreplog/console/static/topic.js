// A topic: its partitions, and of those in view each replica from log start over high watermark to log end.

import { bytes, counted, duration, el, link, number, setText } from "./dom.js";
import { get, lookAt, state } from "./live.js";
import { events } from "./events.js";
import { virtualList } from "./virtual_list.js";
import { act } from "./acts.js";
import { readers } from "./groups.js";

const ROW_HEIGHT = 30;
const NO_LEADER = -1;
const SIZES_MS = 5000;

export function topicView(main, [name]) {
  const summary = el("p", {});
  const outOfSync = el("ul", { class: "problems" });
  let shownOutOfSync = null;
  const only = el("input", { type: "checkbox", id: "only", onchange: update });
  const from = el("input", { type: "number", min: 0, class: "narrow", "aria-label": "First partition", placeholder: "from", oninput: update });
  const list = virtualList(ROW_HEIGHT, makeRow, fillRow, onVisible, "Partitions");
  let visible = [];
  let sizes = {};
  let timer = null;
  let left = false;
  const line = events(name);
  const groups = readers(name);
  const changes = el("div", {});
  const trace = el("p", { hidden: true }, link("trace this topic", "replays", "topic", name));
  main.append(el("h1", {}, name), summary, outOfSync,
    el("p", { class: "tools" }, el("label", {}, only, " only those degraded"), " ", from),
    el("div", { class: "heading", "aria-hidden": "true" }, ["partition", "leader", "epoch", "ISR", "replicas"].map((text) => el("span", {}, text))),
    list.element, groups.element, trace, changes, line.element);
  lookAt(name, []);

  function onVisible(items) {
    visible = items.map((item) => item.partition);
    lookAt(name, visible);
    if (visible.length && timer === null) readSizes();
  }

  // A directory and a cluster that denies it show none.
  async function readSizes() {
    if (left) return;
    timer = setTimeout(readSizes, SIZES_MS);
    if (!state.overview?.brokers.length || state.error) return;
    try {
      sizes = (await get("/api/sizes", { topic: name, partitions: visible.join() })).sizes;
    } catch {
      sizes = {};
    }
  }

  function update() {
    line.update();
    trace.hidden = !state.overview?.brokers.length;
    if (state.overview && !changes.children.length) {
      changes.append(act("alter-config", "Alter a setting", [["topic", "topic", name], ["config", "setting, as retention.ms", ""], ["value", "value; none for its default", ""]]),
        act("elect-preferred", "Elect preferred leaders", [["topic", "topic", name]]),
        act("reassign-partitions", "Reassign partitions", [["topic", "topic", name], ["replicas", "new replicas, as 0=1,2,3 1=2,3,1", ""]]),
        act("delete-topic", "Delete the topic", [["topic", "topic", name]]),
        act("produce", "Produce a record", [["topic", "topic", name], ["partition", "partition", "0"], ["key", "key", ""], ["value", "value", ""]]));
    }
    const rows = [...state.rows.values()].sort((a, b) => a.partition - b.partition);
    const degraded = rows.filter(isDegraded);
    setText(summary, state.exists ? `${counted(rows.length, "partition")}, ${number(degraded.length)} degraded`
      : "There is no such topic now.");
    if (shownOutOfSync !== state.outOfSync) {
      shownOutOfSync = state.outOfSync;
      outOfSync.hidden = shownOutOfSync.length === 0;
      outOfSync.replaceChildren(...shownOutOfSync.map((each) => el("li", {}, each.text)));
    }
    list.show((only.checked ? degraded : rows).filter((item) => item.partition >= (Number(from.value) || 0)));
  }

  function makeRow() {
    const cells = ["partition", "leader", "epoch", "isr"].map((kind) => el("span", { class: kind }));
    return el("div", { class: "partition-row" }, cells, el("span", { class: "replicas" }));
  }

  function fillRow(element, item) {
    const [partition, leader, epoch, isr, replicas] = element.children;
    const seen = state.replicas.get(item.partition);
    element.classList.toggle("degraded", isDegraded(item));
    if (partition.textContent !== String(item.partition)) {
      partition.replaceChildren(link(String(item.partition), "records", name, String(item.partition)));
    }
    setText(leader, item.leader === NO_LEADER ? "none" : String(item.leader));
    setText(epoch, item.epoch < 0 ? "–" : String(item.epoch));
    setText(isr, item.isr.join(","));
    const found = seen?.replicas ?? item.replicas.map((broker) => ({ broker, state: "" }));
    const bounds = scale(found);
    while (replicas.children.length < found.length) replicas.append(makeReplica());
    [...replicas.children].forEach((box, index) => {
      box.hidden = index >= found.length;
      const size = sizes[item.partition];
      if (!box.hidden) fillReplica(box, found[index], bounds, rate(seen, found[index]), size?.[found[index].broker], size?.[item.leader]);
    });
  }

  return { update, leave() { list.leave(); groups.leave(); clearTimeout(timer); left = true; } };
}

function isDegraded(item) {
  return (item.leader === NO_LEADER && item.replicas.length > 0) || item.replicas.some((broker) => !item.isr.includes(broker));
}

function makeReplica() {
  return el("span", { class: "replica" }, el("b", {}), el("span", { class: "bar" }, el("i", { class: "committed" }), el("i", { class: "uncommitted" })),
    el("small", {}));
}

// size, leaderSize: bytes of its log and the leader's, undefined where they are not known.
function fillReplica(box, replica, [low, high], perSecond, size, leaderSize) {
  const [id, bar, text] = box.children;
  setText(id, replica.broker === null ? "" : String(replica.broker));
  const known = Number.isInteger(replica.log_end_offset);
  const at = (offset) => (known ? (100 * (offset - low)) / Math.max(1, high - low) : 0);
  const [start, end] = [at(replica.log_start_offset), at(replica.log_end_offset)];
  const watermark = Math.min(end, Math.max(start, at(replica.high_watermark)));
  bar.children[0].style.left = `${start}%`;
  bar.children[0].style.width = `${watermark - start}%`;
  bar.children[1].style.left = `${watermark}%`;
  bar.children[1].style.width = `${end - watermark}%`;
  box.dataset.state = replica.state;
  const behind = leaderSize > size ? ` (${bytes(leaderSize - size)})` : "";
  const since = replica.lag_ms ? `, ${duration(replica.lag_ms)}` : "";
  const lag = replica.lag ? ` lag ${number(replica.lag)}${behind}${since}` : "";
  const speed = perSecond ? ` +${number(Math.round(perSecond))}/s` : "";
  setText(text, known ? `${number(replica.log_end_offset)}${lag}${speed}` : `${replica.state}${lag}`);
  box.title = known
    ? `${replica.state}: log start ${number(replica.log_start_offset)}, high watermark ${number(replica.high_watermark)}, log end ${number(replica.log_end_offset)}, ${bytes(size)}`
    : replica.state + (Number.isInteger(replica.last_log_end_offset) ? `: its log ended at ${number(replica.last_log_end_offset)} when its broker last responded` : "");
}

function scale(replicas) {
  const known = replicas.filter((replica) => Number.isInteger(replica.log_end_offset));
  return [Math.min(...known.map((replica) => replica.log_start_offset)), Math.max(...known.map((replica) => replica.log_end_offset))];
}

// Records a second that a replica has appended between the last two looks.
function rate(seen, replica) {
  const before = seen?.before?.replicas.find((other) => other.broker === replica.broker);
  if (!before || !Number.isInteger(before.log_end_offset) || !Number.isInteger(replica.log_end_offset)) return 0;
  return Math.max(0, (1000 * (replica.log_end_offset - before.log_end_offset)) / Math.max(1, seen.at - seen.before.at));
}
