/** Signs in with the one-time code of `onetool ui`. */
import { send, setCsrf } from "../core/api.js";

export async function signIn(code) {
  const { csrf } = await send("POST", "/api/session", { code });
  setCsrf(csrf);
}
