//! See `remex_fuzz::blob`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::blob(data));
