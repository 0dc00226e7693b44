// Changes: what one will do, the command that does the same, and the confirmation that names what is changed.

import { el, setText } from "./dom.js";
import { post, state } from "./live.js";

// name: of the act. fields: [parameter, label, initial value], "" for one that may be left out.
export function act(name, title, fields) {
  if (!state.overview?.writable) return el("span", {});
  const inputs = fields.map(([parameter, label, value]) => el("input", { name: parameter, placeholder: label, "aria-label": label, value }));
  let parameters = {}; // those prepared
  let edits = 0;
  const text = el("p", {});
  const command = el("code", {});
  const confirm = el("input", { "aria-label": "Name that confirms", autocomplete: "off" });
  const result = el("p", { role: "status" });
  const doIt = el("button", { type: "button", onclick: perform }, "Do it");
  const prepared = el("div", { class: "prepared", hidden: true }, text, el("pre", {}, command),
    el("p", {}, "Type the name to confirm: ", confirm, " ", doIt));
  const form = el("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); prepare(); },
    oninput: () => { edits++; prepared.hidden = true; } }, inputs, el("button", {}, "Prepare"));

  async function prepare() {
    const begun = ++edits; // an answer to an earlier form is dropped
    prepared.hidden = true;
    const given = Object.fromEntries(inputs.filter((input) => input.value !== "").map((input) => [input.name, input.value]));
    const found = await send(given, null);
    if (!found || begun !== edits) return;
    parameters = given;
    setText(text, found.text);
    setText(command, found.command ?? "No command takes a name that begins with a hyphen.");
    confirm.placeholder = found.name;
    confirm.value = "";
    prepared.hidden = false;
    confirm.focus();
  }

  async function perform() {
    const begun = edits;
    const found = await send(parameters, confirm.value);
    if (!found) return;
    if (begun === edits) prepared.hidden = true;
    setText(result, found.done);
  }

  // The console's answer; null where it refuses, which is shown.
  async function send(given, confirmed) {
    setText(result, "");
    try {
      return await post(`/api/acts/${encodeURIComponent(name)}`, { parameters: given, confirm: confirmed });
    } catch (error) {
      setText(result, error.message);
      return null;
    }
  }

  return el("details", {}, el("summary", {}, title), form, prepared, result);
}
