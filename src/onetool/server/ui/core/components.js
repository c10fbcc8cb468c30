/** Components that several screens use. */
import { fill, h, newId } from "./h.js";
import { t, tOr } from "./i18n.js";

export const button = (text, onclick, attributes = {}) => h("button", { type: "button", onclick, ...attributes }, text);
export const primaryButton = (text, onclick, attributes = {}) =>
  button(text, onclick, { class: "primary", ...attributes });
export const quietButton = (text, onclick, attributes = {}) => button(text, onclick, { class: "quiet", ...attributes });

/** A button for a request. Until that ends, it keeps the focus, but clicks do nothing. Errors are shown. */
export function actionButton(text, action, attributes = {}) {
  const run = async () => {
    if (element.ariaDisabled) return;
    element.ariaDisabled = "true";
    try {
      await action();
    } catch (error) {
      notify(error.message, "bad");
    } finally {
      element.ariaDisabled = null;
    }
  };
  const element = button(text, run, attributes);
  return element;
}

/** A switch. If `change(on)` throws, the switch returns to its previous state. */
export function toggle(label, on, change, attributes = {}) {
  const element = h("button.switch", {
    type: "button",
    role: "switch",
    "aria-checked": String(on),
    "aria-label": label,
    ...attributes,
  });
  element.addEventListener("click", async (event) => {
    event.stopPropagation();
    const isOn = element.getAttribute("aria-checked") !== "true";
    element.setAttribute("aria-checked", String(isOn));
    element.setAttribute("aria-busy", "true");
    try {
      await change(isOn);
    } catch (error) {
      element.setAttribute("aria-checked", String(!isOn));
      notify(error.message, "bad");
    } finally {
      element.removeAttribute("aria-busy");
    }
  });
  return element;
}

export const badge = (kind) => h("span.badge", { data: { kind } }, tOr(`kind.${kind}`, kind));

/** Tabs and their panels: `[{ id, label, panel }]`. A panel may be a function, called when the tab is first shown. */
export function tabs(label, list, selected = list[0].id) {
  const stem = newId("tab");
  const panels = list.map((one) =>
    h("div.panel", {
      role: "tabpanel",
      id: `${stem}-${one.id}-panel`,
      "aria-labelledby": `${stem}-${one.id}`,
      hidden: true,
    }),
  );
  const heads = list.map((one, index) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${stem}-${one.id}`,
        "aria-controls": panels[index].id,
        onclick: () => show(index),
        onkeydown: (event) => move(event, index),
      },
      one.label,
    ),
  );
  function show(selectedIndex) {
    const { panel } = list[selectedIndex];
    if (!panels[selectedIndex].hasChildNodes())
      fill(panels[selectedIndex], typeof panel === "function" ? panel() : panel);
    heads.forEach((head, index) => {
      head.setAttribute("aria-selected", String(index === selectedIndex));
      head.tabIndex = index === selectedIndex ? 0 : -1;
      panels[index].hidden = index !== selectedIndex;
    });
  }
  function move(event, index) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? list.length - 1
          : step && (index + step + list.length) % list.length;
    if (next === undefined) return;
    event.preventDefault();
    show(next);
    heads[next].focus();
  }
  show(
    Math.max(
      0,
      list.findIndex((one) => one.id === selected),
    ),
  );
  return h("div.tabs", {}, h("div.heads", { role: "tablist", "aria-label": label }, heads), panels);
}

/** A list of names and values. Entries without a value are omitted. */
export function definitionList(list) {
  const entries = list.filter(([, value]) => value != null && value !== "" && !(Array.isArray(value) && !value.length));
  return h(
    "dl.facts",
    {},
    entries.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** A button that copies a string to the clipboard. */
export function copyButton(text) {
  const element = quietButton(t("copy"), async () => {
    await copy(typeof text === "function" ? text() : text);
    notify(t("copied"));
  });
  return element;
}

async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = h("textarea.offscreen", { value: text, "aria-hidden": "true" });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Save a string or a blob as a file. */
export function downloadFile(name, content, type = "text/plain") {
  const url = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A placeholder for missing content: what is missing, and what to do. */
export const emptyState = (title, advice, ...actions) =>
  h(
    "div.empty-state",
    {},
    h("p.title", {}, title),
    advice ? h("p", {}, advice) : null,
    actions.length ? h("div.actions", {}, actions) : null,
  );

/** Show a notice for a few seconds. Screen readers announce it. */
export function notify(text, tone = "good") {
  const region = document.querySelector("#notices");
  const notice = h("p.notice", { data: { tone } }, text);
  region?.append(notice);
  setTimeout(() => notice.remove(), tone === "bad" ? 8000 : 2500);
}

export function spinner() {
  return h("span.spinner", { role: "status", "aria-label": t("loading") });
}

/** Ask for confirmation. Resolves to whether the user confirmed. */
export function confirmAction(question, label) {
  return new Promise((resolve) => {
    const dialog = openModal(
      question,
      [],
      [quietButton(t("cancel"), () => dialog.close()), button(label, () => dialog.close("yes"), { class: "danger" })],
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}

/** Open a dialog with a title, content and buttons. It is removed when it is closed. */
export function openModal(title, content, buttons, attributes = {}) {
  const id = newId("dialog");
  const dialog = h(
    "dialog",
    { "aria-labelledby": id, ...attributes },
    h(
      "header",
      {},
      h("h2", { id }, title),
      quietButton("×", () => dialog.close(), { class: "quiet close", "aria-label": t("close") }),
    ),
    h("div.content", {}, content),
    buttons.length ? h("footer", {}, buttons) : null,
  );
  dialog.opener = document.activeElement; // may be replaced while the dialog is open
  dialog.addEventListener("close", () => {
    dialog.remove();
    if (document.activeElement === document.body) dialog.opener?.focus();
  });
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector(".content :is(input, textarea, select):not([type=hidden])")?.focus();
  return dialog;
}

/** A labeled control with a hint and an error message below it. */
export function labeled(label, control, { hint, required } = {}) {
  control.id ||= newId("control");
  const problem = h("p.problem", { id: `${control.id}-problem`, hidden: true });
  const hintElement = h("p.hint", { id: `${control.id}-hint`, hidden: !hint }, hint ?? "");
  control.setAttribute("aria-describedby", `${hintElement.id} ${problem.id}`);
  const element = h(
    "div.field",
    {},
    h("label", { for: control.id }, label, required ? h("span.required", { title: t("form.required") }, " *") : null),
    control,
    hintElement,
    problem,
  );
  element.control = control;
  element.showProblem = (text) => {
    fill(problem, text ?? "").hidden = !text;
    if (text) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  };
  return element;
}
