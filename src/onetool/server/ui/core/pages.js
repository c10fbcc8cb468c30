/** A list that is loaded page by page, as far as it is needed. */

export class Pages {
  items = [];
  total = 0;
  #loaded = []; // `{ token, count, generation }` of each page
  #next = ""; // the token of the page after them, null after the last page
  #generation = 0; // pages of an older one are outdated
  #wanted = [0, -1];
  #loading = null;
  #aborter = new AbortController();

  /** `fetchPage(token, signal)` returns `{ items, total, next }`. `getKey(item)` identifies an item. */
  constructor(fetchPage, getKey = (item) => item.id) {
    Object.assign(this, { fetchPage, getKey });
  }

  /** Load pages up to the item with this index, at least one. */
  async loadFirst(last = 0) {
    this.#wanted = [0, last];
    await this.#loadWanted(() => {});
    return this;
  }

  /** Load the items with these indexes. Calls `onLoad(start, old)` for each page, where `old` are the items that it replaces,
   * or `onError(error)`. */
  load(first, last, onLoad, onError) {
    this.#wanted = [first, last];
    if (this.#loading || !this.#findMissing()) return;
    this.#loading = this.#loadWanted(onLoad)
      .catch((error) => error.name === "AbortError" || onError(error))
      .finally(() => (this.#loading = null));
  }

  /** Let `load` fetch pages again that are loaded. */
  expire() {
    this.#generation += 1;
  }

  cancel() {
    this.#aborter.abort();
  }

  async #loadWanted(onLoad) {
    for (let missing; (missing = this.#findMissing()); ) onLoad(...(await this.#loadPage(missing)));
  }

  /** Return the place of the first wanted page that is outdated or not loaded. */
  #findMissing() {
    const [first, last] = this.#wanted;
    let start = 0;
    for (const [index, { token, count, generation }] of this.#loaded.entries()) {
      if (generation !== this.#generation && start <= last && start + count > first) return { index, start, token };
      start += count;
    }
    const next = { index: this.#loaded.length, start: this.items.length, token: this.#next };
    return next.token !== null && next.start <= last ? next : null;
  }

  /** Load a page. If it ends elsewhere than before, the pages after it are loaded again when they are wanted. */
  async #loadPage({ index, start, token }) {
    const generation = this.#generation;
    const { items, total, next = null } = await this.fetchPage(token, this.#aborter.signal);
    const isSameEnd = next === (this.#loaded[index + 1]?.token ?? this.#next);
    const count = this.#loaded[index]?.count ?? 0;
    const old = this.items.slice(start, start + count);
    this.items.splice(start, isSameEnd ? count : Infinity, ...this.#keepOrder(items, old));
    this.#loaded.splice(index, isSameEnd ? 1 : Infinity, { token, count: items.length, generation });
    if (!isSameEnd) this.#next = next;
    this.total = this.#next === null ? this.items.length : total;
    return [start, old];
  }

  /** Return the items in their old order if they are the same, so that nothing moves under the pointer. */
  #keepOrder(items, old) {
    const places = new Map(old.map((item, index) => [this.getKey(item), index]));
    const getPlace = (item) => places.get(this.getKey(item));
    if (items.length !== old.length || items.some((item) => getPlace(item) === undefined)) return items;
    return items.sort((one, other) => getPlace(one) - getPlace(other));
  }
}
