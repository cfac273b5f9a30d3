//! SipHash-2-4 of whole words: the checksum of headers. Start at [`siphash`].
//!
//! A keyed hash, because output may imitate a record: without the key, no program can make a header with a valid
//! checksum. The standard library has the function only in a deprecated form without a stable promise.

/// Returns SipHash-2-4 of `bytes` under `key`.
///
/// The length must be a multiple of 8.
pub(crate) fn siphash(key: [u64; 2], bytes: &[u8]) -> u64 {
    debug_assert!(bytes.len().is_multiple_of(8), "headers are whole words");
    let mut state = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for chunk in bytes.chunks_exact(8) {
        absorb(&mut state, u64::from_le_bytes(chunk.try_into().expect("the chunk has 8 bytes")));
    }
    absorb(&mut state, (bytes.len() as u64) << 56);
    state[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut state);
    }
    state[0] ^ state[1] ^ state[2] ^ state[3]
}

fn absorb(state: &mut [u64; 4], word: u64) {
    state[3] ^= word;
    round(state);
    round(state);
    state[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use std::hash::Hasher as _;

    use super::siphash;

    #[test]
    #[allow(deprecated, reason = "an independent implementation to compare with")]
    fn the_hash_is_siphash_2_4() {
        for words in 0..20_u8 {
            let bytes: Vec<u8> = (0..words * 8).collect();
            let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
            let mut hasher = std::hash::SipHasher::new_with_keys(key[0], key[1]);
            hasher.write(&bytes);
            assert_eq!(siphash(key, &bytes), hasher.finish());
        }
    }
}
