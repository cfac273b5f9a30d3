/**
 * Reads TOML 1.0, as far as files of settings use it: everything but dates, which are kept as text.
 *
 * Pure: no I/O. Start at {@link parseToml}.
 *
 * @module
 */

/** A value of a file. */
export type TomlValue = string | number | boolean | readonly TomlValue[] | TomlTable;

/** A table of a file. */
export interface TomlTable {
  [key: string]: TomlValue;
}

/** What is wrong with a file, and in which line. */
export class TomlError extends Error {
  constructor(message: string, readonly line: number) {
    super(message);
    this.name = "TomlError";
  }
}

/** Returns the tables of a file. */
export function parseToml(text: string): TomlTable {
  return new Parser(text.replace(/^\ufeff/, "").replaceAll("\r\n", "\n")).file();
}

const ESCAPES: Readonly<Record<string, string>> = { b: "\b", t: "\t", n: "\n", f: "\f", r: "\r", '"': '"', "\\": "\\" };
const INTEGER = /^[+-]?(0|[1-9](_?\d)*)$|^0x[\da-fA-F](_?[\da-fA-F])*$|^0o[0-7](_?[0-7])*$|^0b[01](_?[01])*$/;
const FLOAT = /^[+-]?((0|[1-9](_?\d)*)(\.\d(_?\d)*)?([eE][+-]?\d(_?\d)*)?|inf|nan)$/;
const DATE = /^\d{4}-\d\d-\d\d|^\d\d:\d\d/;

class Parser {
  readonly #text: string;
  #at = 0;
  /** Tables that have a header, or were written as a value: neither may be defined again. */
  readonly #defined = new Set<TomlTable>();

  constructor(text: string) {
    this.#text = text;
  }

  file(): TomlTable {
    const root = newTable();
    let table = root;
    for (;;) {
      this.#skip(/[ \t\r\n]*(#[^\n]*[ \t\r\n]*)*/y);
      if (this.#at >= this.#text.length) return root;
      if (this.#take("[[")) table = this.#header(root, "]]");
      else if (this.#take("[")) table = this.#header(root, "]");
      else this.#pair(table);
      this.#skip(/[ \t]*(#[^\n]*)?/y);
      if (this.#at < this.#text.length && !this.#match(/\r?\n/y)) throw this.#error("a line goes on behind its end");
    }
  }

  #header(root: TomlTable, end: "]" | "]]"): TomlTable {
    const path = this.#path();
    if (!this.#take(end)) throw this.#error(`\`${end}\` is missing`);
    const parent = this.#tableAt(root, path.slice(0, -1));
    const last = path.at(-1)!;
    const there = parent[last];
    if (end === "]]") {
      if (there !== undefined && !Array.isArray(there)) throw this.#error(`\`${last}\` is defined twice`);
      const table = newTable();
      parent[last] = [...((there as TomlValue[] | undefined) ?? []), table];
      return table;
    }
    const table = there === undefined ? (parent[last] = newTable()) : there;
    if (!isTable(table) || this.#defined.has(table)) throw this.#error(`\`${last}\` is defined twice`);
    this.#defined.add(table);
    return table;
  }

  /** Returns the table at the end of a path; of an array of tables the last one. */
  #tableAt(from: TomlTable, path: readonly string[]): TomlTable {
    let table = from;
    for (const key of path) {
      const there = (table[key] ??= newTable());
      const next = Array.isArray(there) ? (there as TomlValue[]).at(-1) : there;
      if (next === undefined || !isTable(next as TomlValue)) throw this.#error(`\`${key}\` is not a table`);
      table = next as TomlTable;
    }
    return table;
  }

  #pair(into: TomlTable): void {
    const path = this.#path();
    if (!this.#take("=")) throw this.#error("`=` is missing");
    this.#skip(/[ \t]*/y);
    const table = this.#tableAt(into, path.slice(0, -1));
    const key = path.at(-1)!;
    if (table[key] !== undefined) throw this.#error(`\`${key}\` is defined twice`);
    table[key] = this.#value();
  }

  /** Reads a plain or dotted key and the blanks around it. */
  #path(): string[] {
    const path: string[] = [];
    do {
      this.#skip(/[ \t]*/y);
      const quote = this.#text[this.#at];
      const key = quote === '"' || quote === "'" ? this.#string() : this.#match(/[A-Za-z0-9_-]+/y);
      if (key === undefined) throw this.#error("a key is missing");
      path.push(key);
      this.#skip(/[ \t]*/y);
    } while (this.#take("."));
    return path;
  }

  #value(): TomlValue {
    const first = this.#text[this.#at];
    if (first === '"' || first === "'") return this.#string();
    if (this.#take("[")) return this.#array();
    if (this.#take("{")) return this.#inlineTable();
    const word = this.#match(/[^\s,\]}#]+/y);
    if (word === undefined) throw this.#error("a value is missing");
    if (word === "true" || word === "false") return word === "true";
    if (INTEGER.test(word)) return Number(word.replaceAll("_", ""));
    if (FLOAT.test(word)) return Number(word.replaceAll("_", "").replace("inf", "Infinity").replace("nan", "NaN"));
    if (DATE.test(word)) return word + (this.#match(/ \d\d:\d\d[^\s,\]}#]*/y) ?? "");
    throw this.#error(`\`${word}\` is not a value; texts need quotes`);
  }

  #array(): TomlValue[] {
    const values: TomlValue[] = [];
    for (;;) {
      this.#skip(/[ \t\r\n]*(#[^\n]*[ \t\r\n]*)*/y);
      if (this.#take("]")) return values;
      values.push(this.#value());
      this.#skip(/[ \t\r\n]*(#[^\n]*[ \t\r\n]*)*/y);
      if (!this.#take(",") && this.#text[this.#at] !== "]") throw this.#error("`,` or `]` is missing");
    }
  }

  #inlineTable(): TomlTable {
    const table = newTable();
    this.#skip(/[ \t]*/y);
    for (let isFirst = true; !this.#take("}"); isFirst = false) {
      if (!isFirst && !this.#take(",")) throw this.#error("`,` or `}` is missing");
      this.#pair(table);
      this.#skip(/[ \t]*/y);
    }
    this.#defined.add(table);
    return table;
  }

  #string(): string {
    const quote = this.#text[this.#at]!;
    if (this.#take(quote.repeat(3))) return this.#longString(quote);
    this.#at += 1;
    if (quote === "'") {
      const literal = this.#match(/[^'\n]*/y)!;
      if (!this.#take("'")) throw this.#error("a text has no end");
      return literal;
    }
    let text = "";
    for (;;) {
      text += this.#match(/[^"\\\n]*/y)!;
      if (this.#take('"')) return text;
      if (!this.#take("\\")) throw this.#error("a text has no end");
      text += this.#escape();
    }
  }

  /** Reads a text of several lines behind its quotes. */
  #longString(quote: string): string {
    this.#skip(/\r?\n/y);
    let text = "";
    for (;;) {
      text += this.#match(quote === '"' ? /[^"\\]*/y : /[^']*/y)!;
      if (this.#at >= this.#text.length) throw this.#error("a text has no end");
      if (quote === '"' && this.#take("\\")) {
        if (this.#match(/[ \t]*\r?\n[ \t\r\n]*/y) === undefined) text += this.#escape();
        continue;
      }
      const quotes = this.#match(quote === '"' ? /"+/y : /'+/y)!;
      // The text itself may end with two quotes.
      if (quotes.length >= 3) {
        this.#at -= Math.max(0, quotes.length - 5);
        return text + quote.repeat(Math.min(quotes.length, 5) - 3);
      }
      text += quotes;
    }
  }

  #escape(): string {
    const long = this.#match(/u[\da-fA-F]{4}|U[\da-fA-F]{8}/y);
    const code = long === undefined ? undefined : Number.parseInt(long.slice(1), 16);
    if (code !== undefined && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff)) return String.fromCodePoint(code);
    const escaped = ESCAPES[this.#text[this.#at] ?? ""];
    if (code !== undefined || escaped === undefined) throw this.#error("an escape is not known");
    this.#at += 1;
    return escaped;
  }

  #take(text: string): boolean {
    if (!this.#text.startsWith(text, this.#at)) return false;
    this.#at += text.length;
    return true;
  }

  #skip(pattern: RegExp): void {
    this.#match(pattern);
  }

  /** Takes what matches a sticky expression here. */
  #match(pattern: RegExp): string | undefined {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text)?.[0];
    this.#at += match?.length ?? 0;
    return match;
  }

  #error(message: string): TomlError {
    return new TomlError(message, this.#text.slice(0, this.#at).split("\n").length);
  }
}

/** Without a prototype: a file may have a key `__proto__`. */
function newTable(): TomlTable {
  return Object.create(null) as TomlTable;
}

export function isTable(value: TomlValue | undefined): value is TomlTable {
  return typeof value === "object" && !Array.isArray(value);
}
