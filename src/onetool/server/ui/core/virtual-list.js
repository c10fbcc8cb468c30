/** A list that renders only its visible rows. All rows have the same height. For screen readers, it is a grid with one
 * column. */
import { h, newId } from "./h.js";
import { t } from "./i18n.js";

const OVERSCAN = 6; // rows rendered outside the visible area

class VirtualList extends HTMLElement {
  #count = 0;
  #rows = new Map();
  #active = -1;
  #frame = 0;
  #space = h("div.space", { role: "rowgroup" });

  /** `row(index)` creates a row, `update(row, index)` updates one and returns whether it could, `open(index)` handles
   * Enter and clicks, `load(first, last)` loads rows, and `key(key, index, row)` returns whether it handled a key. */
  configure({ label, height, row, update = () => false, open, load = () => {}, key = () => false }) {
    Object.assign(this, { height, row, update, open, load, key });
    this.setAttribute("role", "grid");
    this.setAttribute("aria-label", label);
    this.tabIndex = 0;
    this.append(this.#space);
    this.addEventListener("scroll", () => this.#scheduleRender(), { passive: true });
    this.addEventListener("keydown", (event) => this.#onKeydown(event));
    this.addEventListener("focus", () => this.#active < 0 && this.#count && this.activate(0, false));
    new ResizeObserver(() => this.#scheduleRender()).observe(this);
    return this;
  }

  get count() {
    return this.#count;
  }

  /** Set the number of rows and update the visible ones. `top` shows the first row and activates none. `added` is the
   * number of new rows at the start: the row that is active stays active, and what is being read does not move. */
  show(count, { top = false, added = 0 } = {}) {
    this.#count = count;
    this.setAttribute("aria-rowcount", count);
    this.#space.style.height = `${count * this.height}px`;
    if (added) this.#shift(added);
    if (top) this.scrollTop = 0;
    if (top || this.#active >= count) this.activate(-1, false);
    this.refresh();
  }

  /** Update the visible rows in a range. Elements are kept if possible: the user may be clicking on one. */
  refresh(first = 0, last = Infinity) {
    const hadFocus = this.contains(document.activeElement);
    for (const [index, row] of [...this.#rows]) {
      if (index < first || index > last || (index < this.#count && this.update(row, index))) continue;
      row.remove();
      this.#rows.delete(index);
    }
    this.#render();
    if (hadFocus && !this.contains(document.activeElement)) this.focus({ preventScroll: true });
  }

  activate(index, scroll = true) {
    this.#setActive(this.#active, false);
    this.removeAttribute("aria-activedescendant");
    this.#active = index;
    if (scroll) this.#reveal(index);
    this.#render();
    this.#setActive(index, true);
  }

  get active() {
    return this.#active;
  }

  #shift(count) {
    const { scrollTop } = this;
    const rows = [...this.#rows];
    this.#rows = new Map();
    for (const [index, row] of rows) this.#place(row, index + count);
    if (this.#active >= 0) this.#active += count;
    if (scrollTop) this.scrollTop = scrollTop + count * this.height;
  }

  #scheduleRender() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.#render();
    });
  }

  #render() {
    if (!this.clientHeight) return;
    const first = Math.max(0, Math.floor(this.scrollTop / this.height) - OVERSCAN);
    const last = Math.min(this.#count - 1, Math.ceil((this.scrollTop + this.clientHeight) / this.height) + OVERSCAN);
    for (const [index, row] of [...this.#rows]) {
      if (index >= first && index <= last) continue;
      row.remove();
      this.#rows.delete(index);
    }
    for (let index = first; index <= last; index += 1) if (!this.#rows.has(index)) this.#add(index);
    this.load(first, last);
  }

  #add(index) {
    const row = this.row(index);
    row.setAttribute("role", "row");
    row.id = newId("row");
    row.addEventListener("click", (event) => {
      if (event.target.closest("button, a")) return;
      this.activate(row.index, false);
      this.open(row.index);
    });
    this.#place(row, index);
    this.#space.append(row);
    if (index === this.#active) this.#setActive(index, true);
  }

  #place(row, index) {
    row.index = index;
    row.setAttribute("aria-rowindex", index + 1);
    row.style.transform = `translateY(${index * this.height}px)`;
    this.#rows.set(index, row);
  }

  #setActive(index, on) {
    const row = this.#rows.get(index);
    row?.classList.toggle("active", on);
    if (on && row) this.setAttribute("aria-activedescendant", row.id);
  }

  #onKeydown(event) {
    if (event.target !== this || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.clientHeight / this.height) - 1);
    const target = {
      ArrowDown: this.#active + 1,
      ArrowUp: this.#active - 1,
      PageDown: this.#active + page,
      PageUp: this.#active - page,
      Home: 0,
      End: this.#count - 1,
    }[event.key];
    if (target !== undefined) this.activate(Math.min(Math.max(target, 0), this.#count - 1));
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

/** A row for an item that is being loaded. */
export const waitingRow = (className) =>
  h(`div.${className}.waiting`, {}, h("span", { role: "gridcell" }, h("span.visually-hidden", {}, t("loading"))));

export const virtualList = (options) => document.createElement("ot-list").configure(options);
