//! The embeddable runtime that decides requests by a compiled quota program.
