//! The daemon as its users meet it: the real command, real files, real proxies.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests, where a panic is how a failure is told"
)]

mod daemon;
mod nginx;
mod policy_file;
