//! The stable C ABI of quota counter backends, version 1.
