//! Checkpoints of a job, for its programs: the client of the protocol by files that gpuos_mover speaks on each node.
//!
//! A program joins when it starts, and is told whether to begin anew or from which files. Then it looks, as often as it likes,
//! whether a checkpoint is wanted, writes its files into a folder and says that they are complete:
//!
//! ```no_run
//! use gpuos_program::{Checkpoints, Outcome, Start};
//!
//! # fn load(_: &std::path::Path) -> std::io::Result<u64> { Ok(0) }
//! # fn save(_: &std::path::Path, _: u64) -> std::io::Result<()> { Ok(()) }
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut checkpoints = Checkpoints::from_environment()?;
//! let mut step = match checkpoints.join(None)? {
//!     Start::New => 0,
//!     Start::Restore { folder, .. } => load(&folder)?,
//!     Start::Failed(why) => return Err(why.into()),
//! };
//! while step < 1_000_000 {
//!     step += 1;
//!     if let Some(request) = checkpoints.wanted() {
//!         save(&checkpoints.folder(request.number)?, step)?;
//!         checkpoints.ready(request.number)?;
//!         if request.is_end() && checkpoints.wait(request.number, None)? == Outcome::Committed {
//!             break;
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! What was saved is stored while the program goes on, which may fail: the disk is full, another node is gone. The next [`Checkpoints::wanted`],
//! [`ask`](Checkpoints::ask) and [`ready`](Checkpoints::ready) look what became of it, rank 0 says so on standard error, and [`Checkpoints::lost`]
//! has it.
//!
//! In a job without checkpoints all of it does nothing: [`Checkpoints::join`] says [`Start::New`], and none is ever wanted.
//!
//! - [`Checkpoints`]: the client;
//! - [`Rank`]: which process of the program this is, given or from the launcher's environment;
//! - `words`: the lines of the protocol; `folder`: its files; `past`: what became of the last one.
//!
//! docs/user/checkpoint-files.md has the protocol.
#![forbid(unsafe_code)]

mod checkpoints;
mod error;
mod folder;
mod past;
mod rank;
mod words;

pub use checkpoints::{Checkpoints, Outcome, Start};
pub use error::Error;
pub use past::Lost;
pub use rank::Rank;
pub use words::{Reason, Request};
