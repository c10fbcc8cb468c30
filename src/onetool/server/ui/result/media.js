/** Images and audio in results: by handle, or as base64 data. */
import { request, encodePath } from "../core/api.js";
import { h } from "../core/h.js";
import { load } from "../core/loading.js";
import { downloadFile, button } from "../core/components.js";
import { t } from "../core/i18n.js";

const DATA_URL = /^data:(image\/(?:png|jpeg|gif|webp|avif|bmp)|audio\/[\w.+-]+);base64,[A-Za-z0-9+/=\s]+$/;
const HANDLE = /^[0-9a-f]{32}$/;
const MAX_URL_CHARS = 30e6;
const MAX_ITEMS = 20;

/** Return the media in a value or a list as `{ handle }` or `{ url }`. SVG is shown as text. */
export function findMedia(value) {
  const parts = Array.isArray(value) ? value.slice(0, MAX_ITEMS) : [value];
  return parts.map(toMedia).filter(Boolean);
}

function toMedia(part) {
  if (typeof part === "string") return parseDataUrl(part);
  if (part === null || typeof part !== "object") return null;
  if (typeof part.media === "string" && HANDLE.test(part.media)) return { handle: part.media };
  const type = part.mimeType ?? part.mime_type;
  return typeof part.data === "string" && typeof type === "string"
    ? parseDataUrl(`data:${type};base64,${part.data}`)
    : null;
}

function parseDataUrl(url) {
  return url.length < MAX_URL_CHARS && DATA_URL.test(url.slice(0, 200)) ? { url } : null;
}

export function mediaView({ handle, url }) {
  const element = h("div.picture");
  if (url) element.append(renderUrl(url));
  else
    load(element, async () =>
      renderBlob(await (await request("GET", `/api/media${encodePath(handle)}`, { accept: "*/*" })).blob()),
    );
  return element;
}

/** Convert the blob to a data URL: the content security policy does not allow blob URLs. */
async function renderBlob(blob) {
  if (!/^(image|audio)\//.test(blob.type)) return button(t("download"), () => downloadFile("media", blob));
  const reader = new FileReader();
  await new Promise((resolve) => {
    reader.onload = resolve;
    reader.readAsDataURL(blob);
  });
  return renderUrl(reader.result);
}

function renderUrl(url) {
  return url.startsWith("data:audio/")
    ? h("audio", { controls: true, src: url })
    : h("img", { src: url, alt: t("result.picture.alt") });
}
