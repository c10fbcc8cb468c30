/** The fields of a server's form. */
import { t } from "../core/i18n.js";
import { argumentsField, choiceField, linesField, numberField, pairsField, textField } from "../settings/fields.js";

const EXPOSE = ["code", "direct", "both", "auto"];
const DEFAULT_TIMEOUT = "30"; // seconds
const DEFAULT_IDLE_TIMEOUT = "600"; // seconds

/** Return the fields of a server that is a process, or is reached by a URL, by their keys. */
export const makeFields = (isProcess) => ({
  ...(isProcess ? processFields() : urlFields()),
  timeout: numberField(t("servers.timeout"), { placeholder: DEFAULT_TIMEOUT }),
  idle_timeout: numberField(t("servers.idleTimeout"), { placeholder: DEFAULT_IDLE_TIMEOUT }),
  "tools.include": linesField(t("servers.include"), { hint: t("servers.include.hint"), rows: 2 }),
  "tools.exclude": linesField(t("servers.exclude"), { hint: t("servers.exclude.hint"), rows: 2 }),
  expose: choiceField(t("servers.expose"), choices("expose", EXPOSE), { hint: t("servers.expose.hint") }),
  pin: choiceField(t("servers.pin"), choices("pin", ["strict", "off"])),
  sanitize: choiceField(t("servers.sanitize"), choices("sanitize", [true])),
  stateful: choiceField(t("servers.stateful"), choices("stateful", [true])),
  shared: choiceField(t("servers.shared"), choices("shared", [true, false])),
});

/** Return the name of a setting for people. */
export const nameSetting = (key) => t(`servers.setting.${key}`);

/** Return options with the default first. */
const choices = (name, values) => [
  [undefined, t(`serverChoice.${name}.default`)],
  ...values.map((value) => [value, t(`serverChoice.${name}.${value}`)]),
];

const processFields = () => ({
  command: textField(t("servers.command")),
  args: argumentsField(t("servers.args"), { hint: t("servers.args.hint") }),
  env: pairsField(t("servers.env"), { hint: t("servers.references.hint") }),
  cwd: textField(t("servers.cwd"), { hint: t("servers.cwd.hint") }),
});

const urlFields = () => ({
  url: textField(t("servers.url")),
  headers: pairsField(t("servers.headers"), { hint: t("servers.references.hint") }),
  auth: choiceField(t("servers.auth"), choices("auth", ["oauth"])),
  accounts: linesField(t("servers.accounts"), { hint: t("servers.accounts.hint"), rows: 2 }),
  transport: choiceField(t("servers.transport"), choices("transport", ["sse"])),
});
