//! See `remex_fuzz::jwks`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::jwks(data));
