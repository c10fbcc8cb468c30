/** The request that an HTTP tool makes, as a form. Secrets are named (`${secret:NAME}`) and stored in secrets.yaml; a
 * literal credential is not shown. */
import { h } from "../core/h.js";
import { labelled } from "../core/parts.js";
import { say } from "../core/say.js";
import { pairs } from "./pairs.js";
import { isNamed } from "./secrets.js";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const AUTHS = ["", "bearer", "basic", "apiKey"];
const PLACES = ["header", "query"];
const OWN = new Set(["method", "urlTemplate", "query", "headers", "body", "auth", "timeoutMs", "retries", "response"]);

const select = (values, chosen, words) => {
  const control = h(
    "select",
    {},
    values.map((value) => h("option", { value }, words(value))),
  );
  control.value = chosen;
  return control;
};
const same = (value) => value;

class HttpFields extends HTMLElement {
  use(impl = {}) {
    this.rest = Object.fromEntries(Object.entries(impl).filter(([key]) => !OWN.has(key)));
    this.response = impl.response;
    this.secret = impl.auth?.value ?? "";
    const given = impl.auth ?? {};
    this.fields = {
      method: labelled(say("http.method"), select(METHODS, impl.method ?? "GET", same)),
      urlTemplate: labelled(
        say("http.url"),
        h("textarea.code", {
          rows: 1,
          value: impl.urlTemplate ?? "",
          placeholder: "https://api.example.com/items/${id}",
          spellcheck: "false",
        }),
        { required: true, hint: say("http.url.hint") },
      ),
      body: labelled(
        say("http.body"),
        h("textarea.code", { rows: 3, value: written(impl.body), spellcheck: "false" }),
        { hint: say("http.body.hint") },
      ),
      auth: labelled(
        say("http.auth"),
        select(AUTHS, given.type ?? "", (value) => (value ? value : say("http.auth.none"))),
      ),
      place: labelled(say("http.auth.in"), select(PLACES, given.in ?? "header", same)),
      name: labelled(say("http.auth.name"), h("input", { value: given.name ?? "", spellcheck: "false" })),
      value: labelled(
        say("http.auth.value"),
        h("input", {
          autocomplete: "off",
          spellcheck: "false",
          value: isNamed(this.secret) ? this.secret : "",
          placeholder: this.secret && !isNamed(this.secret) ? say("secret.kept") : "${secret:API_KEY}",
        }),
        { hint: say("http.auth.hint") },
      ),
      timeoutMs: labelled(
        say("http.timeout"),
        h("input", { inputmode: "numeric", value: impl.timeoutMs ?? "", placeholder: "10000" }),
      ),
      retries: labelled(
        say("http.retries"),
        h("input", { inputmode: "numeric", value: impl.retries ?? "", placeholder: "2" }),
      ),
      selector: labelled(
        say("http.selector"),
        h("input", { value: impl.response?.selector ?? "", spellcheck: "false" }),
        { hint: say("http.selector.hint") },
      ),
    };
    this.more = labelled(
      say("http.more"),
      h("textarea.code", { rows: 2, spellcheck: "false", value: written(isEmpty(this.rest) ? null : this.rest) }),
      { hint: say("http.more.hint") },
    );
    this.query = pairs(say("http.query"), impl.query);
    this.headers = pairs(say("http.headers"), impl.headers);
    const { method, urlTemplate, body, auth, place, name, value, timeoutMs, retries, selector } = this.fields;
    this.append(
      h("div.line", {}, method, urlTemplate),
      this.query,
      this.headers,
      body,
      h("div.line.auth", {}, auth, place, name, value),
      h("div.line", {}, timeoutMs, retries, selector),
      h("details", { open: !isEmpty(this.rest) }, h("summary.hint", {}, say("http.more")), this.more),
    );
    auth.control.addEventListener("change", () => this.#showAuth());
    this.#showAuth();
    return this;
  }

  /** Raises what is wrong with JSON that a person wrote. */
  get value() {
    const text = (name) => this.fields[name].control.value.trim();
    return {
      ...JSON.parse(this.more.control.value.trim() || "{}"),
      method: text("method"),
      urlTemplate: text("urlTemplate"),
      query: this.query.value,
      headers: this.headers.value,
      ...(text("body") ? { body: read(text("body")) } : {}),
      ...(text("auth") ? { auth: this.#auth(text) } : {}),
      ...(text("timeoutMs") ? { timeoutMs: Number(text("timeoutMs")) } : {}),
      ...(text("retries") ? { retries: Number(text("retries")) } : {}),
      ...this.#response(text("selector")),
    };
  }

  /** The names in `${…}` of everything but what proves who we are. */
  get placeholders() {
    const { auth: _, ...impl } = this.value;
    return new Set([...JSON.stringify(impl).matchAll(/(?<!\$)\$\{([A-Za-z_][\w-]*)\}/g)].map(([, name]) => name));
  }

  #auth(text) {
    const value = text("value") || this.secret;
    return text("auth") === "apiKey"
      ? { type: "apiKey", in: text("place"), name: text("name"), value }
      : { type: text("auth"), value };
  }

  #response(selector) {
    const { selector: _, ...rest } = this.response ?? {};
    const response = { ...rest, ...(selector ? { selector } : {}) };
    return Object.keys(response).length ? { response } : {};
  }

  #showAuth() {
    const type = this.fields.auth.control.value;
    this.fields.value.hidden = !type;
    this.fields.place.hidden = this.fields.name.hidden = type !== "apiKey";
  }
}

const isEmpty = (object) => !Object.keys(object).length;
const written = (body) =>
  body === undefined || body === null ? "" : typeof body === "string" ? body : JSON.stringify(body, null, 2);

function read(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

customElements.define("ot-http", HttpFields);
export const httpFields = (impl) => document.createElement("ot-http").use(impl);
