// The cluster: brokers, topics and the last events.

import { el, link, number, row, table } from "./dom.js";
import { state } from "./live.js";
import { brokerCharts } from "./charts.js";
import { events } from "./events.js";
import { act } from "./acts.js";
import { stateChanges } from "./state_changes.js";

export function clusterView(main) {
  const health = el("ul", { class: "problems" });
  const brokers = el("section", {});
  const topics = el("section", {});
  const changes = el("div", {});
  const filter = el("input", { type: "search", placeholder: "topics that contain", "aria-label": "Filter topics", oninput: update });
  const list = events(null);
  const figures = el("div", {});
  let charts = null;
  const logged = stateChanges();
  main.append(el("h1", {}, "Cluster"), health, brokers, figures, el("h2", {}, "Topics"), filter, topics, changes, list.element,
    logged.element);
  let shown = null;

  function update() {
    list.update();
    logged.update();
    const overview = state.overview;
    if (!overview || (shown?.overview === overview && shown.filter === filter.value)) return;
    shown = { overview, filter: filter.value };
    if (overview.brokers.length && !charts) {
      charts = brokerCharts();
      figures.append(charts.element);
    }
    health.hidden = overview.problems.length + overview.out_of_sync.length === 0;
    health.replaceChildren(...overview.problems.map((problem) => el("li", {}, problem)),
      ...overview.out_of_sync.map((each) => el("li", {}, each.text)));
    if (!changes.children.length) {
      changes.append(act("create-topic", "Create a topic", [["topic", "name", ""], ["partitions", "partitions", "1"], ["replication_factor", "replicas", "1"]]));
    }
    brokers.replaceChildren(...(overview.brokers.length ? [el("h2", {}, "Brokers"), table(["broker", "address", "rack", "state"],
      overview.brokers.map((broker) => row(
        String(broker.id),
        broker.host ? `${broker.host}:${broker.port}` : "–",
        broker.rack ?? "–",
        el("span", { class: broker.state === "live" ? "good" : "bad" },
          broker.id === overview.controller ? `${broker.state}, controller${epoch(overview)}` : broker.state))))] : []));
    const found = overview.topics.filter((topic) => topic.name.includes(filter.value));
    topics.replaceChildren(found.length ? table(["topic", "partitions", "under-replicated", "without a leader", ""],
      found.slice(0, 1000).map((topic) => row(
        link(topic.name, "topic", topic.name),
        number(topic.partitions),
        count(topic.under_replicated),
        count(topic.leaderless),
        topic.error || (topic.internal ? "internal" : "")))) : el("p", {}, "none"));
    if (found.length > 1000) topics.append(el("p", {}, `and ${number(found.length - 1000)} more: type a part of the name`));
  }

  return { update, leave: () => charts?.leave() };
}

function epoch(overview) {
  return overview.controller_epoch === null ? "" : ` of epoch ${overview.controller_epoch}`;
}

function count(value) {
  return el("span", { class: value ? "bad" : "" }, number(value));
}
