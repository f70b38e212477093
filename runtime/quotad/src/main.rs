//! The quota daemon: answers proxies, watches its policy file and never dies of a bad one.

fn main() {}
