//! Frame heads and masks: the part of the format that both directions share.

use crate::Role;

pub(crate) const CONTINUATION: u8 = 0x0;
pub(crate) const TEXT: u8 = 0x1;
pub(crate) const BINARY: u8 = 0x2;
pub(crate) const CLOSE: u8 = 0x8;
pub(crate) const PING: u8 = 0x9;
pub(crate) const PONG: u8 = 0xA;

/// The longest payload of a control frame.
pub(crate) const MAX_CONTROL_LEN: usize = 125;

/// Two bytes, eight for the length, four for the mask.
pub(crate) const MAX_HEAD_LEN: usize = 14;

pub(super) const FIN: u8 = 0x80;
pub(super) const RESERVED: u8 = 0x70;
pub(super) const OPCODE: u8 = 0x0F;
pub(super) const MASKED: u8 = 0x80;
pub(super) const LENGTH: u8 = 0x7F;
/// Instead of a length: the length follows in two bytes.
pub(super) const LENGTH_IN_2: u8 = 126;
/// Instead of a length: the length follows in eight bytes.
pub(super) const LENGTH_IN_8: u8 = 127;

/// Returns the length of the shortest head for a frame with this payload.
pub(crate) fn head_len(role: Role, payload_len: usize) -> usize {
    let length = match payload_len {
        0..=125 => 2,
        126..=0xFFFF => 4,
        _ => 10,
    };
    match role {
        Role::Server => length,
        Role::Client => length + 4,
    }
}

/// Writes the head of a whole (unfragmented) frame; `head` is exactly [`head_len`] long.
///
/// `key` is the mask of a client and `None` for a server.
pub(crate) fn write_head(head: &mut [u8], opcode: u8, payload_len: usize, key: Option<[u8; 4]>) {
    let (length, key_place) = head.split_at_mut(head.len() - if key.is_some() { 4 } else { 0 });
    length[0] = FIN | opcode;
    match length.len() {
        2 => length[1] = payload_len as u8,
        4 => {
            length[1] = LENGTH_IN_2;
            length[2..].copy_from_slice(&(payload_len as u16).to_be_bytes());
        }
        _ => {
            length[1] = LENGTH_IN_8;
            length[2..].copy_from_slice(&(payload_len as u64).to_be_bytes());
        }
    }
    if let Some(key) = key {
        length[1] |= MASKED;
        key_place.copy_from_slice(&key);
    }
}

/// Masks or unmasks in place, starting at the first byte of the key.
pub(crate) fn mask(payload: &mut [u8], key: [u8; 4]) {
    let [a, b, c, d] = key;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let mut words = payload.chunks_exact_mut(8);
    for word in &mut words {
        let masked = u64::from_ne_bytes(word.try_into().expect("a chunk of eight has eight bytes")) ^ wide;
        word.copy_from_slice(&masked.to_ne_bytes());
    }
    for (byte, key) in words.into_remainder().iter_mut().zip(key.into_iter().cycle()) {
        *byte ^= key;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn masking_by_words_is_masking_by_bytes(payload: Vec<u8>, key: [u8; 4]) {
            let mut by_words = payload.clone();
            mask(&mut by_words, key);
            let by_bytes: Vec<u8> = payload.iter().enumerate().map(|(i, byte)| byte ^ key[i % 4]).collect();
            prop_assert_eq!(by_words, by_bytes);
        }
    }
}
