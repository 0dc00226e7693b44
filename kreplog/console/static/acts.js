// Changes: what one will do, the command that does the same, and the confirmation that names what is changed.

import { el, setText } from "./dom.js";
import { post, state } from "./live.js";

// name: of the act. fields: [parameter, label, initial value], "" for one that may be left out.
export function act(name, title, fields) {
  if (!state.overview?.writable) return el("span", {});
  const inputs = fields.map(([parameter, label, value]) => el("input", { name: parameter, placeholder: label, "aria-label": label, value }));
  const text = el("p", {});
  const command = el("code", {});
  const confirm = el("input", { "aria-label": "Name that confirms", autocomplete: "off" });
  const result = el("p", { role: "status" });
  const perform = el("button", { type: "button", onclick: () => send(confirm.value) }, "Do it");
  const prepared = el("div", { class: "prepared", hidden: true }, text, el("pre", {}, command),
    el("p", {}, "Type the name to confirm: ", confirm, " ", perform));
  const form = el("form", { class: "tools", onsubmit: (event) => { event.preventDefault(); send(null); },
    oninput: () => { prepared.hidden = true; } }, inputs, el("button", {}, "Prepare"));

  async function send(confirmed) {
    const parameters = Object.fromEntries(inputs.filter((input) => input.value !== "").map((input) => [input.name, input.value]));
    setText(result, "");
    try {
      const found = await post(`/api/acts/${encodeURIComponent(name)}`, { parameters, confirm: confirmed });
      if (confirmed === null) {
        setText(text, found.text);
        setText(command, found.command ?? "No command takes a name that begins with a hyphen.");
        confirm.placeholder = found.name;
        confirm.value = "";
        prepared.hidden = false;
        confirm.focus();
      } else {
        prepared.hidden = true;
        setText(result, found.done);
      }
    } catch (error) {
      setText(result, error.message);
    }
  }

  return el("details", {}, el("summary", {}, title), form, prepared, result);
}
