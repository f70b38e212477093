//! The boundary from the host's side: hand-written tables that keep the rules and that break them, and real libraries.

mod answers;
mod blocking;
mod description;
mod library;
mod options;
mod suite;
mod zoo;
