//! Text → raw quota object.

pub mod raw;
