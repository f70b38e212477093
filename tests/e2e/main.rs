//! The daemon as its users meet it: the real command, real files, real proxies.

#![expect(
    clippy::unwrap_used,
    reason = "tests, where a panic is how a failure is told"
)]

mod admin;
mod daemon;
mod decide;
mod examples;
mod nginx;
mod plugin;
mod policy_file;
mod protection;
mod reload;
