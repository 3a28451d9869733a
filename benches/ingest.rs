//! How fast rows are read.

fn main() {}
