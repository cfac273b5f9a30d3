//! Output of which every byte tells its place.

/// Nine bytes, as every number that is printed here.
const FIRST: u64 = 10_000_000;

/// Returns a script that prints `10000000`, `10000001` … up to this many bytes.
pub(crate) fn numbers(bytes: u64) -> String {
    format!("seq {FIRST} 99999999 | head -c {bytes}")
}

/// Fails unless these are the bytes that [`numbers`] prints from `offset` on.
pub(crate) fn check_numbers(offset: u64, bytes: &[u8]) {
    let mut line = format!("{}\n", FIRST + offset / 9).into_bytes();
    let (begun, rest) = bytes.split_at(bytes.len().min((9 - offset % 9) as usize));
    let mut is_right = line[(offset % 9) as usize..].starts_with(begun);
    for printed in rest.chunks(9) {
        count_on(&mut line);
        is_right &= line.starts_with(printed);
    }
    assert!(is_right, "wrong bytes from offset {offset} on");
}

/// Adds one to a number in digits; much faster than to format the next.
fn count_on(line: &mut [u8]) {
    for digit in line.iter_mut().rev().skip(1) {
        if *digit < b'9' {
            *digit += 1;
            return;
        }
        *digit = b'0';
    }
}
