/** A list of any length of which only what can be seen exists. Rows are all of one height. It is a grid of one
 * column. */
import { h, newId } from "./h.js";

const MORE = 6; // rows beyond what is seen

class VirtualList extends HTMLElement {
  #count = 0;
  #rows = new Map();
  #active = -1;
  #frame = 0;
  #stem = newId("row");
  #space = h("div.space", { role: "rowgroup" });

  /** `row(index)` makes one, `renew(row, index)` brings it up to date where it can, `open(index)` is Enter and a click,
   * `need(last)` is told what will be looked at, `key(key, index, row)` may take a key. */
  use({ label, height, row, renew = () => false, open, need = () => {}, key = () => false }) {
    Object.assign(this, { height, row, renew, open, need, key });
    this.setAttribute("role", "grid");
    this.setAttribute("aria-label", label);
    this.tabIndex = 0;
    this.append(this.#space);
    this.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.addEventListener("keydown", (event) => this.#pressed(event));
    this.addEventListener("focus", () => this.#active < 0 && this.#count && this.activate(0, false));
    new ResizeObserver(() => this.#soon()).observe(this);
    return this;
  }

  get count() {
    return this.#count;
  }

  /** How many rows there are from now on; what is shown is brought up to date. */
  show(count, { top = false } = {}) {
    this.#count = count;
    this.setAttribute("aria-rowcount", count);
    this.#space.style.height = `${count * this.height}px`;
    if (this.#active >= count) this.#active = -1;
    if (top) this.scrollTop = 0;
    this.refresh();
  }

  /** The rows from one to another are brought up to date, where they are seen. A row that can stay does: somebody may
   * be clicking on it. */
  refresh(first = 0, last = Infinity) {
    for (const [index, row] of [...this.#rows]) {
      if (index < first || index > last || (index < this.#count && this.renew(row, index))) continue;
      row.remove();
      this.#rows.delete(index);
    }
    this.#update();
  }

  activate(index, scroll = true) {
    this.#mark(this.#active, false);
    this.#active = index;
    if (scroll) this.#reveal(index);
    this.#update();
    this.#mark(index, true);
  }

  get active() {
    return this.#active;
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#update();
    });
  }

  #update() {
    if (!this.clientHeight) return;
    const first = Math.max(0, Math.floor(this.scrollTop / this.height) - MORE);
    const last = Math.min(this.#count - 1, Math.ceil((this.scrollTop + this.clientHeight) / this.height) + MORE);
    for (const [index, row] of [...this.#rows]) {
      if (index >= first && index <= last) continue;
      row.remove();
      this.#rows.delete(index);
    }
    for (let index = first; index <= last; index += 1) if (!this.#rows.has(index)) this.#add(index);
    this.need(last);
  }

  #add(index) {
    const row = this.row(index);
    row.setAttribute("role", "row");
    row.setAttribute("aria-rowindex", index + 1);
    row.id = `${this.#stem}-${index}`;
    row.style.transform = `translateY(${index * this.height}px)`;
    row.addEventListener("click", (event) => {
      if (event.target.closest("button, a")) return;
      this.activate(index, false);
      this.open(index);
    });
    this.#rows.set(index, row);
    this.#space.append(row);
    if (index === this.#active) this.#mark(index, true);
  }

  #mark(index, on) {
    const row = this.#rows.get(index);
    row?.classList.toggle("active", on);
    if (on && row) this.setAttribute("aria-activedescendant", row.id);
  }

  #pressed(event) {
    if (event.target !== this || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.clientHeight / this.height) - 1);
    const to = {
      ArrowDown: this.#active + 1,
      ArrowUp: this.#active - 1,
      PageDown: this.#active + page,
      PageUp: this.#active - page,
      Home: 0,
      End: this.#count - 1,
    }[event.key];
    if (to !== undefined) this.activate(Math.min(Math.max(to, 0), this.#count - 1));
    else if (event.key === "Enter" && this.#active >= 0) this.open(this.#active);
    else if (!(this.#active >= 0 && this.key(event.key, this.#active, this.#rows.get(this.#active)))) return;
    event.preventDefault();
  }

  #reveal(index) {
    const top = index * this.height;
    if (top < this.scrollTop) this.scrollTop = top;
    else if (top + this.height > this.scrollTop + this.clientHeight)
      this.scrollTop = top + this.height - this.clientHeight;
  }
}

customElements.define("ot-list", VirtualList);
export const list = (given) => document.createElement("ot-list").use(given);
