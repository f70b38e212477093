//! The ui suite.
