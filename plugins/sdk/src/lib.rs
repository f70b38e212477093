//! Write a quota counter backend in Rust.
