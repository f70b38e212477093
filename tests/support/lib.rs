//! Support for the test suites.
#![expect(
    clippy::expect_used,
    clippy::panic,
    reason = "it serves tests, where a panic is how a failure is told"
)]

pub mod commands;
