//! See `remex_fuzz::host_path`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::host_path(data));
