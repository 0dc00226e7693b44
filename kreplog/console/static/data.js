// Bytes of a record, shown as text, JSON or hexadecimal; they are never markup.

import { bytes, el } from "./dom.js";

const SHOWN_AT_ONCE = 1 << 20;

// found: {size, base64} or null. address: parameters by which the rest of long ones is fetched.
export function data(found, form, address) {
  if (found === null) return el("span", { class: "null" }, "null");
  const content = Uint8Array.from(atob(found.base64), (character) => character.charCodeAt(0));
  const box = el("pre", {}, format(content, form, content.length < found.size));
  if (content.length === found.size) return box;
  const rest = el("button", { type: "button", onclick: all }, `${bytes(found.size)}: show all`);
  const save = el("a", { href: address && `/api/record-field?${new URLSearchParams(address)}`, download: "record" }, "save");
  return el("div", {}, box, address ? [rest, " ", save] : `… ${bytes(found.size)}`);

  async function all() {
    rest.disabled = true;
    try {
      const response = await fetch(`/api/record-field?${new URLSearchParams(address)}`);
      if (!response.ok) throw new Error((await response.json()).error);
      const whole = new Uint8Array(await response.arrayBuffer());
      box.textContent = format(whole.slice(0, SHOWN_AT_ONCE), form, whole.length > SHOWN_AT_ONCE);
      rest.remove();
    } catch (error) {
      rest.disabled = false;
      rest.textContent = error.message;
    }
  }
}

export function format(content, form, cut) {
  const end = cut ? "…" : "";
  if (form !== "hex") {
    try {
      const text = new TextDecoder("utf-8", { fatal: true }).decode(cut ? whole(content) : content);
      return form === "JSON" && !cut ? pretty(text) : visible(text) + end;
    } catch { /* not UTF-8 */ }
  }
  return hex(content) + end;
}

// Without the character that is cut at the end.
function whole(content) {
  let end = content.length;
  while (end > 0 && content.length - end < 3 && (content[end - 1] & 0xc0) === 0x80) end--;
  return end > 0 && content[end - 1] >= 0xc0 ? content.slice(0, end - 1) : content;
}

function pretty(text) {
  try {
    return visible(JSON.stringify(JSON.parse(text), null, 2));
  } catch {
    return visible(text);
  }
}

// Control and format characters, which could turn the direction of what follows, as their numbers.
function visible(text) {
  return text.replace(/[\p{Cc}\p{Cf}]/gu, (character) => (character === "\n" || character === "\t" ? character
    : `\\u{${character.codePointAt(0).toString(16)}}`));
}

function hex(content) {
  return Array.from(content, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}
