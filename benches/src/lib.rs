//! Benchmarks of kiln beside its peers.
