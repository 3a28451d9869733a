//! The `hushflow` command.

fn main() {}
