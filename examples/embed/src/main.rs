//! Decides requests inside a Rust service.

fn main() {}
