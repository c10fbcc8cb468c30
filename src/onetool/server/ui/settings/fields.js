/** Fields of forms for settings. Each reads and shows the value of one setting; undefined stands for the default. */
import { labeled } from "../core/components.js";
import { h } from "../core/h.js";
import { t } from "../core/i18n.js";
import { pairs } from "../bundles/pairs.js";

/** The lines of a textarea, without empty ones. */
export const readLines = (area) =>
  area.value
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

/** A list with one entry per line. An empty list is the default. */
export function linesField(label, { hint, rows = 3 } = {}) {
  const area = h("textarea", { rows, spellcheck: "false", autocomplete: "off" });
  return {
    element: labeled(label, area, { hint }),
    read: () => {
      const lines = readLines(area);
      return lines.length ? lines : undefined;
    },
    show: (value) => (area.value = (value ?? []).join("\n")),
  };
}

/** Arguments of a command: one per line, or a JSON list for those that are empty or have several lines. */
export function argumentsField(label, { hint }) {
  const area = h("textarea", { rows: 3, spellcheck: "false", autocomplete: "off" });
  return {
    element: labeled(label, area, { hint }),
    read: () => {
      const text = area.value.trim();
      const list = text.startsWith("[") ? JSON.parse(text) : area.value.split("\n").filter(Boolean);
      return list.length ? list : undefined;
    },
    show: (value) => {
      const list = value ?? [];
      const isPlain = list.every((one) => one && !one.includes("\n")) && !list[0]?.trim().startsWith("[");
      area.value = isPlain ? list.join("\n") : JSON.stringify(list);
    },
  };
}

/** All of something, which is the default, or what is listed. */
export function limitedField(label, { all, hint }) {
  const box = h("input", { type: "checkbox" });
  const lines = linesField(label, { hint });
  const update = () => (lines.element.hidden = box.checked);
  box.addEventListener("change", update);
  return {
    element: h("div.stack", {}, h("label.check", {}, box, " ", all), lines.element),
    read: () => (box.checked ? undefined : (lines.read() ?? [])),
    show: (value) => {
      box.checked = value == null;
      lines.show(value);
      update();
    },
  };
}

export function textField(label, { hint } = {}) {
  const input = h("input", { type: "text", spellcheck: "false", autocomplete: "off" });
  return {
    element: labeled(label, input, { hint }),
    read: () => input.value.trim() || undefined,
    show: (value) => (input.value = value ?? ""),
  };
}

export function numberField(label, { hint, placeholder } = {}) {
  const input = h("input", { type: "number", min: 0, step: "any", placeholder });
  return {
    element: labeled(label, input, { hint }),
    read: () => {
      if (input.validity.badInput) throw new Error(t("check.number"));
      return input.value === "" ? undefined : Number(input.value);
    },
    show: (value) => (input.value = value ?? ""),
  };
}

/** One of a few values: `[[value, text], …]`. The first is the default. */
export function choiceField(label, options, { hint } = {}) {
  const known = options.map(([, text], index) => h("option", { value: index }, text));
  const select = h("select", {}, known);
  let kept; // a value that is not an option
  return {
    element: labeled(label, select, { hint }),
    read: () => (select.value === "kept" ? kept : options[select.value][0]),
    show: (value) => {
      const index = options.findIndex(([one]) => one === (value ?? undefined));
      const other = h("option", { value: "kept" }, t("settings.asInFile"));
      kept = value;
      select.replaceChildren(...known, ...(index < 0 ? [other] : []));
      select.value = index < 0 ? "kept" : index;
    },
  };
}

/** Names with values, such as headers. */
export function pairsField(label, { hint } = {}) {
  const place = h("div");
  return {
    element: h("div.field", {}, place, hint ? h("p.hint", {}, hint) : null),
    read: () => {
      const { value } = place.firstElementChild;
      return Object.keys(value).length ? value : undefined;
    },
    show: (value) => place.replaceChildren(pairs(label, value ?? {})),
  };
}
