//! The process-local counter backend.
