//! See `remex_fuzz::scopes`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::scopes(data));
