// The page's connection to the console: what is looked at goes out, what has changed comes in.

const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 2000;
const MAX_EVENTS = 2000;
const MAX_EVENT_PARTITIONS = 200_000; // of all events together
const SILENT_MS = 5000; // the console sends something every second

export const state = { overview: null, error: "", run: "", events: [], topic: null, exists: true, rows: new Map(), replicas: new Map(), outOfSync: [] };

let socket = null;
let wanted = { topic: null, partitions: [], events: 0 };
let retryMs = FIRST_RETRY_MS;
let silence = null;
let onChange = () => {};
let onProblem = () => {};

export function start(changed, problem) {
  onChange = changed;
  onProblem = problem;
  connect();
}

// topic: null for none. partitions: the numbers that are visible.
export function lookAt(topic, partitions) {
  if (topic !== wanted.topic) {
    state.topic = topic;
    state.exists = true;
    state.rows = new Map();
    state.replicas = new Map();
    state.outOfSync = [];
  } else if (partitions.join() === wanted.partitions.join()) {
    return;
  }
  wanted = { ...wanted, topic, partitions };
  send();
}

function send() {
  if (socket?.readyState === WebSocket.OPEN) socket.send(JSON.stringify({ ...wanted, run: state.run }));
}

function connect() {
  socket = new WebSocket(`${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/live`);
  heard();
  socket.addEventListener("open", () => {
    retryMs = FIRST_RETRY_MS;
    state.rows = new Map(); // the console sends all of them again
    state.outOfSync = [];
    send();
  });
  socket.addEventListener("message", (message) => {
    heard();
    receive(JSON.parse(message.data));
  });
  socket.addEventListener("close", () => {
    clearTimeout(silence);
    lost();
  });
}

// A console that hangs closes no connection: what is shown is old once nothing has come for a while.
function heard() {
  clearTimeout(silence);
  silence = setTimeout(() => {
    onProblem("The console has not responded for some seconds: what is shown is old; this page goes on once it does.");
  }, SILENT_MS);
}

async function lost() {
  let problem = "The console does not respond: is `kreplog console` running? This page tries again.";
  try {
    const response = await fetch("/static/app.css", { cache: "no-store" });
    if (response.status === 401) {
      problem = "This page has no session any more: open the address that `kreplog console` printed last.";
    }
  } catch { /* the text above says it */ }
  onProblem(problem);
  setTimeout(connect, retryMs);
  retryMs = Math.min(MAX_RETRY_MS, retryMs * 2);
}

function receive(message) {
  if (message.run !== undefined && message.run !== state.run) {
    if (state.run) { // another console: it numbers its events anew
      state.events = [];
      wanted.events = 0;
    }
    state.run = message.run;
  }
  if ("error" in message) state.error = message.error;
  if (message.overview) state.overview = message.overview;
  for (const event of message.events ?? []) {
    if (event.number >= wanted.events) {
      state.events.push(event);
      wanted.events = event.number + 1;
    }
  }
  state.events.splice(0, state.events.length - MAX_EVENTS);
  let partitions = 0;
  const first = state.events.findLastIndex((event) => (partitions += partitionsOf(event)) > MAX_EVENT_PARTITIONS);
  state.events.splice(0, Math.min(first + 1, state.events.length - 1));
  if (message.topic === state.topic && state.topic !== null) {
    if ("exists" in message) state.exists = message.exists;
    if ("out_of_sync" in message) state.outOfSync = message.out_of_sync;
    for (const [partition, leader, epoch, replicas, isr] of message.rows ?? []) {
      state.rows.set(partition, { partition, leader, epoch, replicas, isr });
    }
    for (const partition of message.gone ?? []) state.rows.delete(partition);
    for (const [partition, replicas] of Object.entries(message.replicas ?? {})) {
      const before = state.replicas.get(Number(partition));
      state.replicas.set(Number(partition), { replicas, at: performance.now(), before });
      if (before) before.before = undefined;
    }
  }
  onProblem(state.error ? `${state.error} — what is shown is old; this page tries again.` : "");
  onChange();
}

function partitionsOf(event) {
  return Object.values(event.partitions ?? {}).reduce((sum, numbers) => sum + numbers.length, 0);
}

// JSON of a path of the console. Raises Error with the console's message.
export async function get(path, parameters = {}) {
  return await request(`${path}?${new URLSearchParams(parameters)}`, { cache: "no-store" });
}

export async function post(path, body) {
  return await request(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

async function request(path, options) {
  const response = await fetch(path, options);
  const text = await response.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error(text.trim() || `status ${response.status}`);
  }
  if (!response.ok) throw new Error(found.error ?? `status ${response.status}`);
  return found;
}
