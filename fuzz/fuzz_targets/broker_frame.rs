#![no_main]
libfuzzer_sys::fuzz_target!(|data: &[u8]| ghost_fuzz::broker_frame(data));
