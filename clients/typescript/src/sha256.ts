/**
 * SHA-256 as the server spells it: `sha256:` and 64 hexadecimal digits.
 *
 * @module
 */

/** Returns the hash of bytes. */
export async function contentHash(bytes: Uint8Array): Promise<string> {
  // Pages that were not loaded over TLS have no `subtle`.
  const subtle = (globalThis.crypto as Partial<Crypto> | undefined)?.subtle;
  const digest = subtle ? new Uint8Array(await subtle.digest("SHA-256", bytes as Uint8Array<ArrayBuffer>)) : sha256(bytes);
  return `sha256:${Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

const BLOCK_LEN = 64;

/** The hash as FIPS 180-4 defines it, where the platform has none. */
export function sha256(bytes: Uint8Array): Uint8Array {
  const state = Uint32Array.from(INITIAL);
  const whole = bytes.length - (bytes.length % BLOCK_LEN);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  for (let at = 0; at < whole; at += BLOCK_LEN) addBlock(state, view, at);
  // The rest, a bit, zeros, and the length in bits.
  const rest = bytes.length - whole;
  const end = new Uint8Array(rest + 9 > BLOCK_LEN ? 2 * BLOCK_LEN : BLOCK_LEN);
  end.set(bytes.subarray(whole));
  end[rest] = 0x80;
  const endView = new DataView(end.buffer);
  endView.setBigUint64(end.length - 8, BigInt(bytes.length) * 8n);
  for (let at = 0; at < end.length; at += BLOCK_LEN) addBlock(state, endView, at);
  const digest = new DataView(new ArrayBuffer(32));
  state.forEach((word, index) => digest.setUint32(4 * index, word));
  return new Uint8Array(digest.buffer);
}

function addBlock(state: Uint32Array, block: DataView, at: number): void {
  const words = new Uint32Array(64);
  for (let i = 0; i < 16; i++) words[i] = block.getUint32(at + 4 * i);
  for (let i = 16; i < 64; i++) {
    const [before, late] = [words[i - 15]!, words[i - 2]!];
    const first = rotated(before, 7) ^ rotated(before, 18) ^ (before >>> 3);
    const second = rotated(late, 17) ^ rotated(late, 19) ^ (late >>> 10);
    words[i] = words[i - 16]! + first + words[i - 7]! + second;
  }
  let [a, b, c, d, e, f, g, h] = state as unknown as [number, number, number, number, number, number, number, number];
  for (let i = 0; i < 64; i++) {
    const choice = (e & f) ^ (~e & g);
    const majority = (a & b) ^ (a & c) ^ (b & c);
    const first = (h + (rotated(e, 6) ^ rotated(e, 11) ^ rotated(e, 25)) + choice + ROUNDS[i]! + words[i]!) | 0;
    const second = ((rotated(a, 2) ^ rotated(a, 13) ^ rotated(a, 22)) + majority) | 0;
    [a, b, c, d, e, f, g, h] = [(first + second) | 0, a, b, c, (d + first) | 0, e, f, g];
  }
  [a, b, c, d, e, f, g, h].forEach((word, index) => (state[index] = state[index]! + word));
}

function rotated(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

const PRIMES = [...Array(312).keys()].filter((n) => n > 1 && [...Array(n).keys()].every((d) => d < 2 || n % d !== 0));

/** Returns the first 32 bits of the fraction of a root of a prime. */
function fraction(root: number): number {
  return Math.floor((root - Math.floor(root)) * 2 ** 32);
}

const INITIAL = PRIMES.slice(0, 8).map((prime) => fraction(Math.sqrt(prime)));
const ROUNDS = PRIMES.slice(0, 64).map((prime) => fraction(Math.cbrt(prime)));
