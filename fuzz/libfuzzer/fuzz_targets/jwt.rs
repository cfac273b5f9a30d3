//! See `remex_fuzz::jwt`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::jwt(data));
