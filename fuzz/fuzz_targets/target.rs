//! Runs the fuzz target that the name of the program selects.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let target = hushflow_fuzz::TARGETS.iter().find(|(name, _)| *name == env!("CARGO_BIN_NAME"));
    target.expect("a target of this name").1(input)
});
