//! See `remex_fuzz::token_file`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::token_file(data));
