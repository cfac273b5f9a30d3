//! Inputs that are almost right, the same ones in every run.

/// No input grows beyond this.
const MAX_LEN: usize = 4096;

/// What decoders have special cases for.
const TOKENS: &[&[u8]] = &[
    // JSON
    b"{",
    b"}",
    b"[",
    b"]",
    b",",
    b":",
    b"\"",
    b"null",
    b"true",
    b"{}",
    b"\"\":0,",
    b"\"id\":1,",
    b"\"method\":\"m\",",
    b"\\u0000",
    b"\\ud83d\\ude00",
    b"\\udc00",
    b"\\n",
    b"-0",
    b"0.5",
    b"1e308",
    b"1E-5",
    b"9223372036854775807",
    b"9223372036854775808",
    b"18446744073709551615",
    b"18446744073709551616",
    // text
    b"\n",
    b"\r\n",
    b"\t ",
    b"\0",
    b"\xFF",
    "é".as_bytes(),
    "€".as_bytes(),
    "😀".as_bytes(),
    b"=",
    b"==",
    b"*",
    b"?",
    // paths and addresses
    b"/",
    b"/../",
    b"/./",
    b"%2F",
    b"%00",
    b"%C3%A9",
    b"%fF",
    b"C:",
    b"file://",
    b"localhost",
    b"unix://",
    b"ws://",
    b"[::1]:0",
    b"@",
    b"#",
    // frames
    b"\x81\x00",
    b"\x81\x80\x00\x00\x00\x00",
    b"\x89\x81\x01\x02\x03\x04x",
    b"\x88\x02\x03\xE8",
    b"\x01\x01a",
    b"\x80\x01b",
    b"\x81\x7E\x00\x7E",
    b"\x81\x7F\x00\x00\x00\x00\x00\x01\x00\x00",
    // HTTP
    b"\r\n\r\n",
    b"Origin: x\r\n",
    b"Connection: Upgrade\r\n",
    b"Authorization: Bearer secret\r\n",
];

/// Makes inputs out of seeds.
pub(crate) struct Mutator<'a> {
    seeds: &'a [Vec<u8>],
    random: Random,
}

impl<'a> Mutator<'a> {
    /// Takes seeds, at least one; the target's name decides which inputs come of them.
    pub(crate) fn new(target: &str, seeds: &'a [Vec<u8>]) -> Self {
        let state =
            target.bytes().fold(0x5EED, |state: u64, byte| state << 7 ^ state >> 57 ^ u64::from(byte));
        Self { seeds, random: Random { state } }
    }

    /// Returns a seed with a few changes.
    pub(crate) fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.seed().to_vec();
        for _ in 0..=self.random.below(6) {
            self.change(&mut input);
        }
        input.truncate(MAX_LEN);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let (at, end) = self.range(input.len());
        match self.random.below(9) {
            0 if at < end => input[at] ^= 1 << self.random.below(8),
            1 if at < end => input[at] = self.random.below(256) as u8,
            // Lengths, counts and digits are off by one more often than by anything else.
            2 if at < end => input[at] = input[at].wrapping_add([1, 255][self.random.below(2)]),
            3 => input.truncate(end),
            4 => drop(input.drain(at..end)),
            5 => {
                let copy = input[at..end].to_vec();
                let target = self.random.below(input.len() + 1);
                input.splice(target..target, copy);
            }
            6 => {
                let seed = self.seed();
                let (from, to) = self.range(seed.len());
                input.splice(at..end, seed[from..to].iter().copied());
            }
            _ => {
                let token = TOKENS[self.random.below(TOKENS.len())];
                input.splice(at..at, token.iter().copied());
            }
        }
    }

    fn seed(&mut self) -> &'a [u8] {
        &self.seeds[self.random.below(self.seeds.len())]
    }

    /// Returns the ends of a part of `len` bytes, rarely a large part.
    fn range(&mut self, len: usize) -> (usize, usize) {
        let at = self.random.below(len + 1);
        let longest = if self.random.below(8) == 0 { len } else { 8 };
        (at, len.min(at + self.random.below(longest + 1)))
    }
}

/// SplitMix64: small, and good enough to stumble about with.
struct Random {
    state: u64,
}

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ self.state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ mixed >> 31) % limit as u64) as usize
    }
}
