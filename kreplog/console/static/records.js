// Records of a partition: by offset, time, key, or the newest; as text, JSON or hexadecimal; and the batches they are in.

import { bytes, el, link, number, table, row, setText } from "./dom.js";
import { get, state } from "./live.js";
import { data } from "./data.js";

const FOLLOW_MS = 700;
const MAX_SHOWN = 1000;

export function recordsView(main, [topic, partition]) {
  const name = el("input", { required: true, value: topic ?? "", placeholder: "topic", "aria-label": "Topic", list: "topics" });
  const names = el("datalist", { id: "topics" });
  const where = el("input", { type: "number", min: 0, required: true, class: "narrow", value: partition ?? "0", "aria-label": "Partition" });
  const from = el("select", { "aria-label": "From" }, [["newest", "newest"], ["offset", "offset"], ["time", "time (UTC)"]]
    .map(([value, text]) => el("option", { value }, text)));
  const at = el("input", { class: "narrow", "aria-label": "Offset, time or number of records", value: "50" });
  const key = el("input", { placeholder: "only this key", "aria-label": "Only this key" });
  const form = el("select", { "aria-label": "Show bytes as", onchange: () => render() }, ["text", "JSON", "hex"].map((text) => el("option", { value: text }, text)));
  const follow = el("input", { type: "checkbox", id: "follow", onchange: () => schedule() });
  const note = el("p", { role: "status" });
  const batches = el("details", {}, el("summary", {}, "Batches"));
  const list = el("div", {});
  const more = el("button", { type: "button", onclick: () => next(), hidden: true }, "Next records");
  let loaded = null; // topic, partition and perhaps key of what is shown
  let first = null; // parameters of its first page
  let generation = 0;
  let page = null;
  let begin = 0; // the first offset that was looked at
  let timer = null;
  let shown = [];
  let shownBatches = [];
  let left = false;

  main.append(el("h1", {}, "Records"),
    el("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); load(); } },
      name, names, " partition ", where, " from ", from, " ", at, " ", key, " ", el("button", {}, "Show"), " as ", form,
      el("label", {}, " ", follow, " follow")),
    note, batches, list, more);

  async function load() {
    loaded = { topic: name.value, partition: where.value };
    if (key.value) loaded.key = key.value;
    const parameters = { ...loaded };
    if (from.value === "offset") parameters.offset = at.value || "0";
    if (from.value === "newest") parameters.newest = at.value || "50";
    if (from.value === "time") parameters.time_ms = String(Date.parse(/[zZ]|[+-]\d\d:?\d\d$/.test(at.value) ? at.value : `${at.value}Z`));
    history.replaceState(null, "", `#/records/${encodeURIComponent(name.value)}/${encodeURIComponent(where.value)}`);
    shown = [];
    shownBatches = [];
    page = null;
    first = parameters;
    await fetchPage(first);
  }

  async function next() {
    if (loaded) await fetchPage(page ? { ...loaded, offset: page.next_offset } : first);
  }

  async function fetchPage(parameters) {
    const begun = ++generation; // late answers of earlier ones are dropped
    clearTimeout(timer);
    try {
      const found = await get("/api/records", parameters);
      if (left || begun !== generation) return;
      begin = page === null ? found.start : begin;
      page = found;
      shown = [...shown, ...page.records].slice(-MAX_SHOWN);
      shownBatches = [...shownBatches, ...page.batches].slice(-MAX_SHOWN);
      setText(note, `offsets ${number(page.log_start_offset)} to ${number(page.high_watermark)}; read up to ${number(page.next_offset)}`);
      if (page.records.length || page.batches.length || shown.length === 0) render();
    } catch (error) {
      if (left || begun !== generation) return;
      setText(note, error.message);
    }
    more.hidden = !page || page.next_offset >= page.high_watermark;
    schedule();
  }

  function schedule() {
    clearTimeout(timer);
    if (follow.checked && !left) timer = setTimeout(next, FOLLOW_MS);
  }

  function render() {
    list.replaceChildren(shown.length ? table(["offset", "time", "key", "value", "headers"], shown.map(recordRow)) : el("p", {}, nothing()));
    const open = shownBatches.filter((batch) => batch.damage).length;
    batches.replaceChildren(el("summary", {}, `${number(shownBatches.length)} batches${open ? `, ${open} damaged` : ""}`),
      table(["offsets", "records", "bytes", "epoch", "compression", "producer", "sequence", ""], shownBatches.map(batchRow)));
    if (open) batches.open = true;
  }

  function nothing() {
    if (!loaded?.key || begin === page.next_offset) return "no records";
    return `no record with this key at the offsets ${number(begin)} to ${number(page.next_offset - 1)}: "from" says where the search begins`;
  }

  function recordRow(record) {
    const at = { topic: loaded.topic, partition: loaded.partition, offset: record.offset };
    const headers = record.headers.map(([header, value]) => el("div", {}, `${header}: `, data(value, form.value)));
    if (record.more_headers) headers.push(el("div", {}, `and ${number(record.more_headers)} more`));
    const line = row(number(record.offset), record.timestamp_ms < 0 ? "–" : time(record.timestamp_ms),
      data(record.key, form.value, { ...at, field: "key" }),
      record.marker ?? data(record.value, form.value, { ...at, field: "value" }), headers);
    if (record.marker) line.className = "marker";
    return line;
  }

  function batchRow(batch) {
    const line = row(`${number(batch.base_offset)} – ${number(batch.last_offset)}`, number(batch.records), bytes(batch.bytes), String(batch.leader_epoch),
      batch.compression ?? "–", batch.producer_id >= 0 ? `${batch.producer_id}, epoch ${batch.producer_epoch}` : "–",
      batch.base_sequence >= 0 ? String(batch.base_sequence) : "–",
      batch.damage ? el("span", { class: "bad" }, `damaged: ${batch.damage}`)
        : [batch.transactional ? "transactional" : "", batch.control ? "control" : "", batch.timestamp_type].filter(Boolean).join(", "));
    return line;
  }

  if (topic !== undefined) load();
  return {
    update() {
      const known = state.overview?.topics ?? [];
      if (names.children.length !== Math.min(known.length, 500)) {
        names.replaceChildren(...known.slice(0, 500).map((each) => el("option", { value: each.name })));
      }
    },
    leave() { left = true; clearTimeout(timer); },
  };
}

function time(timestampMs) {
  const date = new Date(timestampMs);
  return Number.isNaN(date.valueOf()) ? String(timestampMs) : date.toISOString();
}
