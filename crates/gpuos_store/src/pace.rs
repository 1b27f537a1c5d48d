//! How fast the store may ask its disk for bytes.

/// Is told how many bytes are about to be read from or written to the store's disk, and waits as long as the disk may not be asked for them.
pub type Pace = dyn Fn(u64) + Send + Sync;
