/** Small things that several screens are made of. */
import { fill, h, newId } from "./h.js";
import { say, sayOr } from "./say.js";

export const button = (text, onclick, given = {}) => h("button", { type: "button", onclick, ...given }, text);
export const primary = (text, onclick, given = {}) => button(text, onclick, { class: "primary", ...given });
export const quiet = (text, onclick, given = {}) => button(text, onclick, { class: "quiet", ...given });

/** Something that is on or off. `change(on)` may refuse by throwing; then it is what it was. */
export function toggle(label, on, change, given = {}) {
  const element = h("button.switch", {
    type: "button",
    role: "switch",
    "aria-checked": String(on),
    "aria-label": label,
    ...given,
  });
  element.addEventListener("click", async (event) => {
    event.stopPropagation();
    const wanted = element.getAttribute("aria-checked") !== "true";
    element.setAttribute("aria-checked", String(wanted));
    element.setAttribute("aria-busy", "true");
    try {
      await change(wanted);
    } catch (error) {
      element.setAttribute("aria-checked", String(!wanted));
      notify(error.message, "bad");
    } finally {
      element.removeAttribute("aria-busy");
    }
  });
  return element;
}

export const badge = (kind) => h("span.badge", { data: { kind } }, sayOr(`kind.${kind}`, kind));

/** Tabs and their panels: `[{ id, label, panel }]`, where a panel may be made when it is first seen. */
export function tabs(label, list, chosen = list[0].id) {
  const stem = newId("tab");
  const panels = list.map((one) =>
    h("div.panel", {
      role: "tabpanel",
      id: `${stem}-${one.id}-panel`,
      "aria-labelledby": `${stem}-${one.id}`,
      hidden: true,
    }),
  );
  const heads = list.map((one, place) =>
    h(
      "button",
      {
        type: "button",
        role: "tab",
        id: `${stem}-${one.id}`,
        "aria-controls": panels[place].id,
        onclick: () => show(place),
        onkeydown: (event) => move(event, place),
      },
      one.label,
    ),
  );
  function show(place) {
    if (!panels[place].hasChildNodes())
      fill(panels[place], typeof list[place].panel === "function" ? list[place].panel() : list[place].panel);
    heads.forEach((head, each) => {
      head.setAttribute("aria-selected", String(each === place));
      head.tabIndex = each === place ? 0 : -1;
      panels[each].hidden = each !== place;
    });
  }
  function move(event, place) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    const next =
      event.key === "Home"
        ? 0
        : event.key === "End"
          ? list.length - 1
          : step && (place + step + list.length) % list.length;
    if (next === undefined) return;
    event.preventDefault();
    show(next);
    heads[next].focus();
  }
  show(
    Math.max(
      0,
      list.findIndex((one) => one.id === chosen),
    ),
  );
  return h("div.tabs", {}, h("div.heads", { role: "tablist", "aria-label": label }, heads), panels);
}

/** Names and values, one below the other; those without a value are left out. */
export function facts(list) {
  const given = list.filter(([, value]) => value != null && value !== "" && !(Array.isArray(value) && !value.length));
  return h(
    "dl.facts",
    {},
    given.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

/** A text that can be taken along. */
export function copyButton(text) {
  const element = quiet(say("copy"), async () => {
    await copy(typeof text === "function" ? text() : text);
    notify(say("copied"));
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

/** A file out of a text or of bytes. */
export function save(name, content, type = "text/plain") {
  const address = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type }));
  h("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Something that went wrong or is not there, and what to do about it. */
export const nothing = (title, advice, ...actions) =>
  h(
    "div.nothing",
    {},
    h("p.title", {}, title),
    advice ? h("p", {}, advice) : null,
    actions.length ? h("div.actions", {}, actions) : null,
  );

/** A word that goes away by itself; a screen reader says it. */
export function notify(text, mood = "good") {
  const region = document.querySelector("#notices");
  const notice = h("p.notice", { data: { mood } }, text);
  region?.append(notice);
  setTimeout(() => notice.remove(), mood === "bad" ? 8000 : 2500);
}

export function spinner() {
  return h("span.spinner", { role: "status", "aria-label": say("loading") });
}

/** A question in a dialog; resolves to whether it was answered with yes. */
export function confirmed(question, yes) {
  return new Promise((resolve) => {
    const dialog = modal(
      question,
      [],
      [quiet(say("cancel"), () => dialog.close()), button(yes, () => dialog.close("yes"), { class: "danger" })],
    );
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"));
  });
}

/** A dialog with a title, a content and buttons; it is gone when it is closed. */
export function modal(title, content, buttons, given = {}) {
  const id = newId("dialog");
  const dialog = h(
    "dialog",
    { "aria-labelledby": id, ...given },
    h(
      "header",
      {},
      h("h2", { id }, title),
      quiet("×", () => dialog.close(), { class: "quiet close", "aria-label": say("close") }),
    ),
    h("div.content", {}, content),
    buttons.length ? h("footer", {}, buttons) : null,
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  dialog.querySelector(".content :is(input, textarea, select):not([type=hidden])")?.focus();
  return dialog;
}

/** A labelled control with a hint below and room for what is wrong with it. */
export function labelled(label, control, { hint, required } = {}) {
  control.id ||= newId("control");
  const problem = h("p.problem", { id: `${control.id}-problem`, hidden: true });
  const told = h("p.hint", { id: `${control.id}-hint`, hidden: !hint }, hint ?? "");
  control.setAttribute("aria-describedby", `${told.id} ${problem.id}`);
  const element = h(
    "div.field",
    {},
    h("label", { for: control.id }, label, required ? h("span.required", { title: say("form.required") }, " *") : null),
    control,
    told,
    problem,
  );
  element.control = control;
  element.complain = (text) => {
    fill(problem, text ?? "").hidden = !text;
    if (text) control.setAttribute("aria-invalid", "true");
    else control.removeAttribute("aria-invalid");
  };
  return element;
}
