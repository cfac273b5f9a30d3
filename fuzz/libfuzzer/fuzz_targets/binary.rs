//! See `remex_fuzz::binary`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::binary(data));
