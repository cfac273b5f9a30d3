//! See `remex_fuzz::lines`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::lines(data));
