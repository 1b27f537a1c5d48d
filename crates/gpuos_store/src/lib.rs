//! The store of checkpoints on a node's disk. What a checkpoint is and which is used is thought in `gpuos_checkpoint`; here
//! bytes are read, written, and held against keyed digests.
//!
//! - [`key`]: the site's key, and what is derived of it for each job,
//! - [`disk`]: all calls of the file system, and the Linux one behind them; [`within`]: how it opens what a user may have mounted over;
//!   [`stream`]: writes that go on beside their caller, from a [`buffer`]; [`fake`]: one in memory that crashes and fails,
//! - [`ingest`]: a program's folder, read as something that a hostile user owns, into a segment,
//! - [`coding`]: the form in which extents are kept: compressed, encrypted, and `sparse` ones short in any case,
//! - [`store`]: the folders of all jobs; [`job`]: the checkpoints of one and their commit; [`choice`]: from which its next run begins; [`passed`]: those of other jobs that it could not load; [`inventory`]: what is there, and removal of one; [`owned`]: removal of all, by whom it may be; [`marks`]: notes about all of it; `reading`: what is not removed for now,
//! - [`pace`]: how fast it may ask its disk for bytes; [`room`]: how much a checkpoint may add to what a user has, and to the disk,
//! - [`verify`]: everything that is kept, read and held against its digests,
//! - [`shard`]: parity of other nodes, and [`erasure`]: how it is made,
//! - [`rebuild`]: segments and manifests that are made again from other nodes,
//! - [`guest`]: parts of nodes that the job has no more,
//! - [`drained`]: the store on a file system of all nodes, and [`transfer`]: a part copied there and back,
//! - [`restore`]: a checkpoint's files into a folder, all of them or one folder's; [`source`]: where their bytes come from.
//!
//! Nothing is parsed whose message authentication code does not hold, and no byte of a file is handed back whose digest does
//! not. The code has no clock, and no thread that outlives a call or what it gives: a caller runs it where it may block, and says what time it is.
#![forbid(unsafe_code)]

mod append;
pub mod buffer;
pub mod choice;
mod cipher;
pub mod coding;
mod digests;
pub mod disk;
pub mod drained;
pub mod erasure;
pub mod error;
pub mod fake;
pub mod guest;
pub mod ingest;
pub mod inventory;
pub mod job;
pub mod key;
pub mod marks;
mod names;
pub mod owned;
pub mod pace;
pub mod passed;
mod reading;
pub mod rebuild;
pub mod restore;
pub mod room;
mod segment;
pub mod shard;
mod small;
pub mod source;
mod sparse;
pub mod store;
pub mod stream;
pub mod transfer;
pub mod verify;
pub mod within;
