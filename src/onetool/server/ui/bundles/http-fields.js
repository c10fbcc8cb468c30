/** Form for the request of an HTTP tool. Secrets are references (`${secret:NAME}`) to secrets.yaml; literal credentials
 * are hidden. */
import { h } from "../core/h.js";
import { labeled } from "../core/components.js";
import { t } from "../core/i18n.js";
import { pairs } from "./pairs.js";
import { isReference } from "./secrets.js";

const METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
const AUTHS = ["", "bearer", "basic", "apiKey"];
const LOCATIONS = ["header", "query"];
const FORM_FIELDS = new Set([
  "method",
  "urlTemplate",
  "query",
  "headers",
  "body",
  "auth",
  "timeoutMs",
  "retries",
  "response",
]);

const select = (values, selected, label) => {
  const control = h(
    "select",
    {},
    values.map((value) => h("option", { value }, label(value))),
  );
  control.value = selected;
  return control;
};
const identity = (value) => value;

class HttpFields extends HTMLElement {
  configure(impl = {}) {
    this.rest = Object.fromEntries(Object.entries(impl).filter(([key]) => !FORM_FIELDS.has(key)));
    this.response = impl.response;
    this.secret = impl.auth?.value ?? "";
    const credentials = impl.auth ?? {};
    this.fields = {
      method: labeled(t("http.method"), select(METHODS, impl.method ?? "GET", identity)),
      urlTemplate: labeled(
        t("http.url"),
        h("textarea.code", {
          rows: 1,
          value: impl.urlTemplate ?? "",
          placeholder: "https://api.example.com/items/${id}",
          spellcheck: "false",
        }),
        { required: true, hint: t("http.url.hint") },
      ),
      body: labeled(t("http.body"), h("textarea.code", { rows: 3, value: toText(impl.body), spellcheck: "false" }), {
        hint: t("http.body.hint"),
      }),
      auth: labeled(
        t("http.auth"),
        select(AUTHS, credentials.type ?? "", (value) => (value ? value : t("http.auth.none"))),
      ),
      authLocation: labeled(t("http.auth.in"), select(LOCATIONS, credentials.in ?? "header", identity)),
      name: labeled(t("http.auth.name"), h("input", { value: credentials.name ?? "", spellcheck: "false" })),
      value: labeled(
        t("http.auth.value"),
        h("input", {
          autocomplete: "off",
          spellcheck: "false",
          value: isReference(this.secret) ? this.secret : "",
          placeholder: this.secret && !isReference(this.secret) ? t("secret.hidden") : "${secret:API_KEY}",
        }),
        { hint: t("http.auth.hint") },
      ),
      timeoutMs: labeled(
        t("http.timeout"),
        h("input", { inputmode: "numeric", value: impl.timeoutMs ?? "", placeholder: "10000" }),
      ),
      retries: labeled(
        t("http.retries"),
        h("input", { inputmode: "numeric", value: impl.retries ?? "", placeholder: "2" }),
      ),
      selector: labeled(t("http.selector"), h("input", { value: impl.response?.selector ?? "", spellcheck: "false" }), {
        hint: t("http.selector.hint"),
      }),
    };
    this.more = labeled(
      t("http.more"),
      h("textarea.code", { rows: 2, spellcheck: "false", value: toText(isEmpty(this.rest) ? null : this.rest) }),
      { hint: t("http.more.hint") },
    );
    this.query = pairs(t("http.query"), impl.query);
    this.headers = pairs(t("http.headers"), impl.headers);
    const { method, urlTemplate, body, auth, authLocation, name, value, timeoutMs, retries, selector } = this.fields;
    this.append(
      h("div.line", {}, method, urlTemplate),
      this.query,
      this.headers,
      body,
      h("div.line.auth", {}, auth, authLocation, name, value),
      h("div.line", {}, timeoutMs, retries, selector),
      h("details", { open: !isEmpty(this.rest) }, h("summary.hint", {}, t("http.more")), this.more),
    );
    auth.control.addEventListener("change", () => this.#showAuth());
    this.#showAuth();
    return this;
  }

  /** Throws a SyntaxError if the user entered invalid JSON. */
  get value() {
    const text = (name) => this.fields[name].control.value.trim();
    return {
      ...JSON.parse(this.more.control.value.trim() || "{}"),
      method: text("method"),
      urlTemplate: text("urlTemplate"),
      query: this.query.value,
      headers: this.headers.value,
      ...(text("body") ? { body: parseBody(text("body")) } : {}),
      ...(text("auth") ? { auth: this.#auth(text) } : {}),
      ...(text("timeoutMs") ? { timeoutMs: Number(text("timeoutMs")) } : {}),
      ...(text("retries") ? { retries: Number(text("retries")) } : {}),
      ...this.#response(text("selector")),
    };
  }

  /** The names in `${…}` and `${file:…}`, except those in credentials. */
  get placeholders() {
    const { auth: _, ...impl } = this.value;
    const found = JSON.stringify(impl).matchAll(/(?<!\$)\$\{(?:file:)?([A-Za-z_][\w-]*)\}/g);
    return new Set([...found].map(([, name]) => name));
  }

  #auth(text) {
    const value = text("value") || this.secret;
    return text("auth") === "apiKey"
      ? { type: "apiKey", in: text("authLocation"), name: text("name"), value }
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
    this.fields.authLocation.hidden = this.fields.name.hidden = type !== "apiKey";
  }
}

const isEmpty = (object) => !Object.keys(object).length;
const toText = (body) =>
  body === undefined || body === null ? "" : typeof body === "string" ? body : JSON.stringify(body, null, 2);

function parseBody(text) {
  if (!/^[[{]/.test(text)) return text;
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

customElements.define("ot-http", HttpFields);
export const httpFields = (impl) => document.createElement("ot-http").configure(impl);
