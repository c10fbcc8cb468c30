/** The price of tokens that the person has entered, in this browser. */
import { browserStorage } from "../core/state.js";

const DEFAULT_PRICE = 3; // US dollars per million tokens

export const readPrice = () => browserStorage.read("price", DEFAULT_PRICE);
export const writePrice = (price) => browserStorage.write("price", price);

/** Return what tokens cost at a price. */
export function formatCost(tokens, price) {
  const money = (tokens / 1e6) * price;
  const maximumFractionDigits = money < 1 ? 4 : money < 100 ? 2 : 0;
  return money.toLocaleString(undefined, { style: "currency", currency: "USD", maximumFractionDigits });
}
