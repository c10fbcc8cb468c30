/** A picture or a sound that a tool gave: as a handle of the server, or written into the data itself. */
import { ask, path } from "../core/api.js";
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { save, button } from "../core/parts.js";
import { say } from "../core/say.js";

const WRITTEN = /^data:(image\/(?:png|jpeg|gif|webp|avif|bmp)|audio\/[\w.+-]+);base64,[A-Za-z0-9+/=\s]+$/;
const HANDLE = /^[0-9a-f]{32}$/;
const LONGEST = 30e6;
const MOST = 20;

/** Those that a value is, or that a list has: `{ handle }` or `{ address }`. Drawings (SVG) are text. */
export function picturesOf(value) {
  const parts = Array.isArray(value) ? value.slice(0, MOST) : [value];
  return parts.map(pictureOf).filter(Boolean);
}

function pictureOf(part) {
  if (typeof part === "string") return written(part);
  if (part === null || typeof part !== "object") return null;
  if (typeof part.media === "string" && HANDLE.test(part.media)) return { handle: part.media };
  const type = part.mimeType ?? part.mime_type;
  return typeof part.data === "string" && typeof type === "string" ? written(`data:${type};base64,${part.data}`) : null;
}

function written(address) {
  return address.length < LONGEST && WRITTEN.test(address.slice(0, 200)) ? { address } : null;
}

export function picture({ handle, address }) {
  const place = h("div.picture");
  if (address) place.append(shown(address));
  else
    load(place, async () =>
      shownBytes(await (await ask("GET", `/api/media${path(handle)}`, { accept: "*/*" })).blob()),
    );
  return place;
}

/** A picture may come from ourselves or be written into the page; a blob is neither. */
async function shownBytes(blob) {
  if (!/^(image|audio)\//.test(blob.type)) return button(say("download"), () => save("media", blob));
  const reader = new FileReader();
  await new Promise((resolve) => {
    reader.onload = resolve;
    reader.readAsDataURL(blob);
  });
  return shown(reader.result);
}

function shown(address) {
  return address.startsWith("data:audio/")
    ? h("audio", { controls: true, src: address })
    : h("img", { src: address, alt: say("result.picture.alt") });
}
