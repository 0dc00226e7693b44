// Settings of topics and brokers, users and ACLs, as they are; nothing is changed here.

import { el, row, setText, table } from "./dom.js";
import { get, state } from "./live.js";

export function settingsView(main, [kind, name]) {
  const note = el("p", { role: "status" });
  const found = el("div", {});
  const choice = el("select", { "aria-label": "Settings of", onchange: () => { location.hash = choice.value; } });
  const only = el("input", { type: "checkbox", onchange: () => load() });
  main.append(el("h1", {}, "Settings"), el("p", { class: "tools" }, choice, el("label", {}, " ", only, " only those set")), note, found);
  let left = false;

  async function load() {
    try {
      if (kind === "topic") showSettings((await get("/api/topic-settings", { topic: name })).settings);
      else if (kind === "broker") showSettings((await get("/api/broker-settings", { broker: name })).settings);
      else if (kind === "users") showRows(["user", "mechanisms"], (await get("/api/users")).users.map((each) => row(each.user,
        Object.entries(each.mechanisms).map(([mechanism, iterations]) => `${mechanism}, ${iterations} iterations`).join("; "))));
      else if (kind === "acls") showRows(["resource", "principal", "host", "operation", "permission"],
        (await get("/api/acls")).acls.map((acl) => row(acl.resource, acl.principal, acl.host, acl.operation, acl.permission)));
      else setText(note, "Choose a topic, a broker, users or ACLs.");
    } catch (error) {
      setText(note, error.message);
    }
  }

  function showSettings(settings) {
    const wanted = settings.filter((each) => !only.checked || each.source !== "default");
    showRows(["setting", "value", "from"], wanted.map((each) => row(each.name, each.value ?? "(not shown)", each.source)));
  }

  function showRows(headings, rows) {
    if (!left) found.replaceChildren(rows.length ? table(headings, rows) : el("p", {}, "none"));
  }

  function update() {
    if (choice.children.length || !state.overview) return;
    const options = [["", "choose"], ["#/settings/users", "users"], ["#/settings/acls", "ACLs"],
      ...state.overview.brokers.map((broker) => [`#/settings/broker/${broker.id}`, `broker ${broker.id}`]),
      ...state.overview.topics.map((topic) => [`#/settings/topic/${encodeURIComponent(topic.name)}`, `topic ${topic.name}`])];
    choice.append(...options.map(([value, text]) => el("option", { value, selected: value === location.hash }, text)));
  }

  load();
  return { update, leave() { left = true; } };
}
