//! See `remex_fuzz::frame_reader`.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| remex_fuzz::frame_reader(data));
