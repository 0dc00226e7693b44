// Consumer groups, and of one its members, what is assigned to them, and the lag of each partition.

import { counted, duration, el, link, number, row, table, setText } from "./dom.js";
import { get, state } from "./live.js";
import { act } from "./acts.js";
import { chart } from "./chart.js";

const REFRESH_MS = 2000;
const FIRST_MS = 100; // until it is known what the console shows

export function groupsView(main, [group]) {
  const note = el("p", { role: "status" });
  const found = el("div", {});
  const filter = el("input", { type: "search", placeholder: "groups that contain", "aria-label": "Filter groups", oninput: render });
  let timer = null;
  let left = false;
  let groups = null;
  const history = chart("Lag, of all partitions and of those with most", number);
  main.append(el("h1", {}, group === undefined ? "Groups" : group), group === undefined ? filter : "", note, found);

  async function refresh() {
    try {
      if (group === undefined) {
        const answer = await get("/api/groups");
        groups = answer.groups;
        setText(note, unreadText(answer));
        if (!left) render();
      } else {
        const facts = await get("/api/group", { group, history: "" });
        if (!left) showGroup(facts);
        setText(note, "");
      }
    } catch (error) {
      setText(note, error.message);
    }
    if (!left) timer = setTimeout(refresh, REFRESH_MS);
  }

  function render() {
    const wanted = (groups ?? []).filter((each) => each.group.includes(filter.value));
    found.replaceChildren(wanted.length ? groupTable(wanted) : el("p", {}, groups === null ? "" : "none"));
  }

  function showGroup(facts) {
    history.draw(facts.history.times_ms, facts.history.lags);
    found.replaceChildren(
      el("p", {}, `${facts.state}${facts.protocol ? `, ${facts.protocol}` : ""}${facts.epoch === null ? "" : `, epoch ${facts.epoch}`}, `
        + `coordinator ${facts.coordinator}, lag ${lagText(facts)}${facts.lag_ms ? `, the oldest record of it ${duration(facts.lag_ms)} old` : ""}`),
      history.element,
      facts.members.length === 0 ? el("p", {}, "It has no members: nobody reads in this group now.") : table(["member", "instance", "client", "host", "partitions"], facts.members.map((member) => row(
        member.member_id, member.instance_id ?? "–", member.client_id, member.host, member.partitions.join(", ") || "none")), "Members"),
      table(["topic", "partition", "committed", "log end", "lag", "lag in time", "member"], facts.offsets.map((each) => row(
        link(each.topic, "topic", each.topic), String(each.partition), number(each.offset), number(each.log_end_offset),
        el("span", { class: each.lag ? "bad" : "" }, number(each.lag)), duration(each.lag_ms), each.member_id ?? "–")), "Offsets"));
  }

  const changes = el("div", {});
  main.append(changes);

  function update() {
    if (group !== undefined && state.overview && !changes.children.length) {
      changes.append(act("reset-offsets", "Reset offsets", [["group", "group", group], ["to", "earliest, latest or an offset", "latest"]]));
    }
  }

  refresh();
  return { update, leave() { left = true; clearTimeout(timer); } };
}

function lagText(facts) {
  if (facts.lag !== null) return number(facts.lag);
  return `at least ${number(facts.known_lag)}, ${counted(facts.lag_unknown, "partition")} unknown`;
}

// Groups of a list, those with most lag first.
function groupTable(groups) {
  const sorted = [...groups].sort((a, b) => (b.lag ?? -1) - (a.lag ?? -1));
  return table(["group", "state", "type", "protocol", "members", "lag", "lag in time", ""], sorted.slice(0, 1000).map((each) => row(
    link(each.group || "(empty name)", "groups", each.group), each.state || "–", each.type || "–", each.protocol_type || "–", number(each.members),
    el("span", { class: each.lag ? "bad" : "" }, `${each.lag_unknown && each.lag !== null ? "≥ " : ""}${number(each.lag)}`), duration(each.lag_ms), each.error)));
}

function unreadText(answer) {
  return answer.unread ? `${counted(answer.unread, "group")} not read yet` : "";
}

// The groups that read a topic, and how far each is behind there.
export function readers(topic) {
  const note = el("p", { role: "status" });
  const found = el("div", {});
  const element = el("section", { hidden: true }, el("h2", {}, "Read by"), note, found);
  let timer = null;
  let left = false;

  async function refresh() {
    if (state.overview?.views.includes("groups")) {
      try {
        const answer = await get("/api/groups", { topic });
        if (left) return;
        element.hidden = false;
        setText(note, unreadText(answer) || (answer.groups.length ? "" : "No consumer group has offsets in this topic or a member that reads it."));
        found.replaceChildren(answer.groups.length ? groupTable(answer.groups) : "");
      } catch (error) {
        element.hidden = false;
        setText(note, error.message);
      }
    }
    if (!left) timer = setTimeout(refresh, state.overview ? REFRESH_MS : FIRST_MS);
  }

  refresh();
  return { element, leave() { left = true; clearTimeout(timer); } };
}
