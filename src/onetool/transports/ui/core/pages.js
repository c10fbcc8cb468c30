/** A list that is loaded page by page, as far as it is needed. */

export class Pages {
  items = [];
  total = 0;
  #next = null;
  #loading = null;
  #lastWanted = -1;
  #aborter = new AbortController();

  /** `fetchPage(token, signal)` returns `{ items, total, next }`. */
  constructor(fetchPage) {
    this.fetchPage = fetchPage;
  }

  /** Load pages up to the item with this index, at least one. */
  async loadFirst(last = 0) {
    do await this.#loadPage();
    while (this.#next && this.items.length <= last);
    return this;
  }

  /** Load up to the item with this index. Calls `onLoad(first, last)` for each page, or `onError(error)`. */
  loadUntil(last, onLoad, onError) {
    this.#lastWanted = last;
    if (this.#loading || !this.#next || last < this.items.length) return;
    this.#loading = this.#loadWanted(onLoad)
      .catch((error) => error.name === "AbortError" || onError(error))
      .finally(() => (this.#loading = null));
  }

  cancel() {
    this.#aborter.abort();
  }

  async #loadWanted(onLoad) {
    while (this.#next && this.#lastWanted >= this.items.length) {
      const first = this.items.length;
      await this.#loadPage();
      onLoad(first, this.items.length - 1);
    }
  }

  async #loadPage() {
    const { items, total, next } = await this.fetchPage(this.#next, this.#aborter.signal);
    this.items.push(...items);
    this.#next = next ?? null;
    this.total = this.#next ? total : this.items.length;
  }
}
