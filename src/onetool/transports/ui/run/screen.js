/** Run: code as a model would write it, its output as it comes, and what it gave. */
import { Refused, stream } from "../core/api.js";
import { fill, h } from "../core/h.js";
import { button, primary } from "../core/parts.js";
import { link } from "../core/router.js";
import { say } from "../core/say.js";
import { ofThisTab } from "../core/store.js";
import { style } from "../core/styles.js";
import { clipped, duration, timeOf, visible } from "../core/text.js";
import { longText } from "../result/long-text.js";
import { picture, picturesOf } from "../result/picture.js";
import { resultView } from "../result/view.js";
import { editor } from "./editor.js";
import { stored, storedIn } from "./stored.js";

await style("run");
const EXAMPLE = 'ot.tools(info="min")';
const MAX_LIVE = 200_000; // characters of output while it runs; the answer has all of it
const MAX_KEPT = 20;

class RunScreen extends HTMLElement {
  #aborter = null;

  connectedCallback() {
    this.className = "page";
    this.editor = editor({
      label: say("run.code"),
      value: ofThisTab.read("code", EXAMPLE),
      run: () => this.#run(),
      changed: (code) => ofThisTab.write("code", code.slice(0, 200_000)),
    });
    this.runButton = primary(say("tester.run"), () => this.#run(), { class: "primary run" });
    this.cancelButton = button(say("tester.cancel"), () => this.#aborter?.abort(), { hidden: true });
    this.progress = h("p.progress", { role: "status" });
    this.output = h("section.run-output", { "aria-label": say("run.output") });
    this.past = h("details.past");
    this.append(
      h(
        "div.inner",
        {},
        h("h1.unseen", {}, say("screen.run")),
        this.editor,
        h(
          "div.bar",
          {},
          this.runButton,
          this.cancelButton,
          h("kbd", { title: say("tester.key") }, "Ctrl ⏎"),
          this.progress,
        ),
        this.output,
        this.past,
      ),
    );
    this.#showPast();
  }

  disconnectedCallback() {
    this.#aborter?.abort();
  }

  show() {
    this.editor.area.focus();
  }

  async #run() {
    const command = this.editor.value;
    if (this.#aborter || !command.trim()) return;
    this.#aborter = new AbortController();
    this.#running(true);
    const live = h("pre.live", { tabindex: "0" });
    const calls = h("ol.live-calls");
    fill(this.output, live, calls);
    const began = performance.now();
    try {
      const result = await this.#result(command, live, calls);
      fill(this.output, answer(result, performance.now() - began));
    } catch (error) {
      const text =
        error.name === "AbortError"
          ? say("tester.cancelled", { time: duration(performance.now() - began) })
          : error.message;
      this.output.append(h("p.outcome", { data: { mood: error.name === "AbortError" ? "quiet" : "bad" } }, text));
    } finally {
      this.#aborter = null;
      this.#running(false, performance.now() - began);
      this.#remember(command);
    }
  }

  async #result(command, live, calls) {
    let shown = 0;
    for await (const { name, data } of stream("POST", "/api/run", {
      body: { command },
      signal: this.#aborter.signal,
    })) {
      if (name === "output" && shown < MAX_LIVE) {
        shown += data.text.length;
        live.append(document.createTextNode(visible(data.text.slice(0, MAX_LIVE))));
        live.scrollTop = live.scrollHeight;
      } else if (name === "call") this.#call(calls, data);
      else if (name === "progress") fill(this.progress, data.message ?? "");
      else if (name === "refused") throw new Refused(0, data.error);
      else if (name === "result") return data;
    }
    throw new Error(say("error.unfinished"));
  }

  #call(calls, { state, number, name, error }) {
    if (state !== "began")
      return calls.querySelector(`[data-number="${number}"]`)?.setAttribute("data-mood", error ? "bad" : "good");
    if (calls.childElementCount < 50) calls.append(h("li", { data: { number } }, clipped(name, 200)));
    fill(this.progress, clipped(name, 200));
  }

  #running(is, ms) {
    this.runButton.disabled = is;
    this.runButton.classList.toggle("busy", is);
    this.cancelButton.hidden = !is;
    fill(this.progress, is ? say("tester.running") : say("tester.ended", { time: duration(ms) }));
  }

  #remember(command) {
    if (command.length > 20_000) return;
    const past = ofThisTab.read("runs", []).filter((one) => one.command !== command);
    ofThisTab.write("runs", [{ command, at: Date.now() }, ...past].slice(0, MAX_KEPT));
    this.#showPast();
  }

  #showPast() {
    const past = ofThisTab.read("runs", []);
    this.past.hidden = !past.length;
    fill(
      this.past,
      h("summary", {}, say("run.past")),
      h(
        "ul.calls",
        {},
        past.map(({ command, at }) =>
          h(
            "li",
            {},
            h("time", { datetime: new Date(at).toISOString() }, timeOf(at)),
            h("code", {}, clipped(command, 200)),
            button(say("history.again"), () => (this.editor.value = command), { class: "quiet" }),
          ),
        ),
      ),
    );
  }
}

function answer({ blocks, isError, error, media, runID }, ms) {
  const last = blocks.length - 1;
  return [
    h(
      "div.bar.answered",
      {},
      h("span", { data: { mood: isError ? "bad" : "good" } }, isError ? (error ?? say("run.failed")) : say("run.done")),
      h("span.time", {}, duration(ms)),
      runID ? h("a", { href: link("activity", "live", runID) }, say("run.timeline")) : null,
    ),
    ...picturesOf(media.map(({ mimeType, data }) => ({ mimeType, data }))).map(picture),
    ...blocks.map((text, place) =>
      isError && place === last
        ? h("pre.outcome", { data: { mood: "bad" }, tabindex: "0" }, clipped(text, 20_000))
        : block(text),
    ),
  ];
}

function block(text) {
  const value = data(text);
  if (storedIn(value)) return stored(value);
  return value !== null && typeof value === "object" ? resultView(value) : h("div.result", {}, longText(text));
}

function data(text) {
  if (!/^\s*[[{]/.test(text)) return null;
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

customElements.define("ot-run", RunScreen);
