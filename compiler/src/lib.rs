//! Compiles YAML quota policies into a checked IR and a flat decision program.
