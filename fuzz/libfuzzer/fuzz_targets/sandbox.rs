//! See `remex_fuzz::sandbox`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::sandbox(data));
