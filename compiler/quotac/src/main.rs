//! The quota policy compiler: check, test, explain and print quota policies.

fn main() {}
