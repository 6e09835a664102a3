//! Where to run.
