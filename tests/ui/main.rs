//! The ui suite: what a person at a terminal, or a program that reads a report, gets to see.
//!
//! - `diagnostics/<code>-<variant>.yaml` is a policy file with that fault; beside it stand what `quotac check` prints for people
//!   (`.stderr`) and for programs (`.json`).
//! - `programs/<name>.yaml` is a policy file, and `<name>.program` beside it what `quotac print` shows of it.
//! - `schema.json` is what `quotac schema` prints.
//! - Each page of `quotac explain` shows a file that fails and one that passes; both are checked here.
//! - `cli` runs the built command: exit codes, streams, colours.
//!
//! A policy file may begin with a comment `# quotac check --max-bytes 100 policies.yaml`: it is then checked with these options.
//! `UPDATE_EXPECT=1` rewrites what is expected.

#![expect(
    clippy::expect_used,
    clippy::panic,
    clippy::string_slice,
    reason = "a panic is how a test tells of a failure"
)]

mod case;
mod cli;
mod diagnostics;
mod exceptions;
mod golden;
mod pages;
mod programs;
mod schema;
