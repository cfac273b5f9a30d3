//! The reader of logs: arbitrary files must give true numbers and an end.
//!
//! An input is a program that builds segments. It makes checksums right where it wants to, because a fuzzer cannot guess
//! them, so that the reader also meets headers that are valid and lie.

use std::{fs, hash::Hasher as _, io::ErrorKind, path::Path};

use remex_log::{Cursor, Item, MAX_CHUNK, Reader, inspect};

const SALT: u64 = 0x0123_4567_89ab_cdef;

/// Events and gaps follow each other without end or overlap, whatever the files are.
pub fn log(data: &[u8]) {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let mut input = Input(data);
    let up_to = input.number();
    let records = build(dir.path(), &mut input);
    let mut reader = Reader::open(dir.path()).unwrap();
    // Between two events of the files there is at most one gap, and one at the end of each file.
    let most_items = 2 * records + 8;
    let starts = [
        Ok(Cursor::START),
        reader.cursor_after(up_to / 2),
        reader.cursor_at_offset(up_to / 2),
        reader.cursor_since(up_to / 2),
        reader.tail(up_to / 2),
    ];
    for start in starts {
        match start {
            Ok(cursor) => read(&mut reader, cursor, up_to, most_items),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Unsupported),
        }
    }
    if let Err(error) = inspect(dir.path()) {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
    }
}

fn read(reader: &mut Reader, mut cursor: Cursor, up_to: u64, most_items: usize) {
    for _ in 0..most_items {
        let expected = cursor.seq.wrapping_add(1);
        let last = match reader.next(&mut cursor, up_to) {
            Ok(None) => {
                assert!(cursor.seq >= up_to);
                return;
            }
            Ok(Some(Item::Output { seq, bytes, .. })) => {
                assert!((1..=MAX_CHUNK).contains(&bytes.len()));
                assert!(seq <= up_to);
                (seq, seq)
            }
            Ok(Some(Item::Exited { seq, payload, .. } | Item::Closed { seq, payload, .. })) => {
                assert!(payload.len() <= MAX_CHUNK && seq <= up_to);
                (seq, seq)
            }
            Ok(Some(Item::Gap(gap))) => (gap.from_seq, gap.to_seq),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                return;
            }
        };
        assert_eq!(last.0, expected);
        assert!(last.1 >= last.0);
        assert_eq!(cursor.seq, last.1);
    }
    panic!("no end after {most_items} items");
}

/// Writes the segments of the input, and returns how many records and segments they can have at most.
fn build(dir: &Path, input: &mut Input<'_>) -> usize {
    let mut count = 0;
    let (mut seq, mut offset) = (1_u64, 0_u64);
    while let Some(flags) = input.byte() {
        if flags & 1 != 0 {
            seq = seq.wrapping_add(input.number());
            offset = offset.wrapping_add(input.number());
        }
        let path = dir.join(format!("{seq:016x}-{offset:016x}.log"));
        if flags & 0x0e == 0x0e {
            // Not every name is a file.
            fs::create_dir(path).ok();
            count += 1;
            continue;
        }
        let key = [SALT, seq];
        let mut bytes = head(seq, offset, flags);
        while let Some(operation) = input.byte() {
            match operation % 8 {
                0..=3 => record(&mut bytes, key, input, operation, &mut seq, &mut offset),
                4 => {
                    let len = input.byte().unwrap_or(0);
                    bytes.extend((0..len).map_while(|_| input.byte()));
                }
                5 => bytes.truncate(bytes.len().saturating_sub(usize::from(input.byte().unwrap_or(0)))),
                6 => {
                    let at = input.number() as usize;
                    let value = input.byte().unwrap_or(0);
                    if let Some(byte) = bytes.get_mut(at) {
                        *byte ^= value;
                    }
                }
                _ => break,
            }
        }
        count += 1 + bytes.len() / 48;
        fs::write(path, bytes).ok();
    }
    count
}

fn head(seq: u64, offset: u64, flags: u8) -> Vec<u8> {
    let mut copy = b"REMEXLOG".to_vec();
    let version = if flags & 0xf0 == 0xf0 { 2_u32 } else { 1 };
    copy.extend(version.to_le_bytes());
    copy.extend(128_u32.to_le_bytes());
    for word in [seq, offset, SALT] {
        copy.extend(word.to_le_bytes());
    }
    copy.resize(120, 0);
    let check = siphash([0, 0], &copy);
    copy.extend(check.to_le_bytes());
    copy.repeat(2)
}

fn record(
    out: &mut Vec<u8>,
    key: [u64; 2],
    input: &mut Input<'_>,
    operation: u8,
    seq: &mut u64,
    offset: &mut u64,
) {
    let (kind, detail, len) =
        (input.byte().unwrap_or(1), input.byte().unwrap_or(1), u32::from(input.byte().unwrap_or(0)));
    let len = if operation & 0x10 != 0 { len << 9 } else { len };
    let events = if operation & 0x20 != 0 { input.number() as u32 } else { u32::from(kind != 5) };
    if operation & 0x40 != 0 {
        *seq = seq.wrapping_add(input.number());
        *offset = offset.wrapping_add(input.number());
    }
    let stored = if operation & 0x80 != 0 { input.byte().unwrap_or(0).into() } else { len as usize };
    let payload = vec![detail; stored.min(len as usize)];
    let mut header = vec![kind, detail, 0, 0];
    header.extend(len.to_le_bytes());
    for word in [*seq, *offset, u64::from(detail)] {
        header.extend(word.to_le_bytes());
    }
    header.extend(crc32(&payload).to_le_bytes());
    header.extend(events.to_le_bytes());
    let check = siphash(key, &header);
    header.extend(check.to_le_bytes());
    out.extend(header);
    out.extend(payload);
    out.resize(out.len().next_multiple_of(8), 0);
    *seq = seq.wrapping_add(events.into());
    *offset = offset.wrapping_add(len.into());
}

/// The rest of the input.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    /// Returns a number that is often small, and sometimes at the edge.
    fn number(&mut self) -> u64 {
        match self.byte().unwrap_or(0) {
            0xff => u64::MAX,
            0xfe => 1 << 63,
            0xfd => u32::MAX.into(),
            0xfc => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte().unwrap_or(0))),
            small => small.into(),
        }
    }
}

#[allow(deprecated, reason = "the checksum of headers is SipHash-2-4")]
fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
    hasher.write(bytes);
    hasher.finish()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & 0_u32.wrapping_sub(crc & 1)))
    })
}
