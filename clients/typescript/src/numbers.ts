/**
 * Numbers that callers pass: one that makes no sense is refused before anything is sent.
 *
 * @module
 */
import { UsageError } from "./errors.js";

/** The longest time that timers of JavaScript can measure, 24 days; a longer one would be over at once. */
export const MAX_TIMER_MS = 2 ** 31 - 1;

/** Params that may lie before the epoch. */
const SIGNED = new Set(["modifiedAtMs", "accessedAtMs"]);

/** Fails unless a number is whole and not below a bound. */
export function checkWhole(name: string, value: unknown, min = 0): void {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= min) return;
  const wanted = min === 0 ? "a whole number that is not negative" : `a whole number of at least ${min}`;
  throw new UsageError(`\`${name}\` is ${String(value)} instead of ${wanted}`, { hint: "leave it out for the default" });
}

/** Fails unless a number is a time in milliseconds that a timer can measure, or endless where that is possible. */
export function checkTime(name: string, value: unknown, bounds: { min?: number; isEndless?: boolean } = {}): void {
  const { min = 0, isEndless = false } = bounds;
  if (typeof value === "number" && value >= min && (value <= MAX_TIMER_MS || (isEndless && value === Infinity))) return;
  const wanted = `a time in milliseconds, from ${min} to ${MAX_TIMER_MS}${isEndless ? ", or Infinity" : ""}`;
  throw new UsageError(`\`${name}\` is ${String(value)} instead of ${wanted}`, { hint: "leave it out for the default" });
}

/** Fails if one of the numbers in params is none that the protocol has: JSON would make `null` of `NaN`, which means no limit. */
export function checkParams(params: object): void {
  for (const [name, value] of Object.entries(params)) {
    if (typeof value === "number") {
      if (!SIGNED.has(name)) checkWhole(name, value);
      else if (!Number.isSafeInteger(value)) throw new UsageError(`\`${name}\` is ${value} instead of a whole number`);
    } else if (typeof value === "object" && value !== null) {
      checkParams(value);
    }
  }
}
