//! Support for the test suites.
#![expect(
    clippy::expect_used,
    clippy::missing_panics_doc,
    clippy::panic,
    reason = "it serves tests, where a panic is how a failure is told"
)]

pub mod client;
pub mod commands;
pub mod executors;
pub mod model;
pub mod services;
