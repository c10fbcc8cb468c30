/** Items that come page by page, as far as somebody wants to see them. */

export class Pages {
  items = [];
  total = 0;
  #next = null;
  #loading = null;
  #wanted = -1;
  #aborter = new AbortController();

  /** `page(token, signal)` gives `{ items, total, next }`. */
  constructor(page) {
    this.page = page;
  }

  /** The first page, and as many as it takes to that item. */
  async begin(last = 0) {
    do await this.#more();
    while (this.#next && this.items.length <= last);
    return this;
  }

  /** Loads until that item is there; `arrived(first, last)` tells what has come, `failed` why it did not. */
  need(last, arrived, failed) {
    this.#wanted = last;
    if (this.#loading || !this.#next || last < this.items.length) return;
    this.#loading = this.#until(arrived)
      .catch((error) => error.name === "AbortError" || failed(error))
      .finally(() => (this.#loading = null));
  }

  cancel() {
    this.#aborter.abort();
  }

  async #until(arrived) {
    while (this.#next && this.#wanted >= this.items.length) {
      const first = this.items.length;
      await this.#more();
      arrived(first, this.items.length - 1);
    }
  }

  async #more() {
    const { items, total, next } = await this.page(this.#next, this.#aborter.signal);
    this.items.push(...items);
    this.#next = next ?? null;
    this.total = this.#next ? total : this.items.length;
  }
}
