//! Loads quota counter backends and calls them safely.
