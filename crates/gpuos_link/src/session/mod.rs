//! The protocol without its sockets: a handshake as a step function, then a session that seals and opens frames.
//!
//! ```text
//!  initiator                                             responder
//!     │  credential { hello, nonce i, job, i -> r }           │   4 bytes of length, then what munge made
//!     ├──────────────────────────────────────────────────────►│
//!     │  credential { answer, nonce r, nonce i, job, r -> i } │
//!     │◄──────────────────────────────────────────────────────┤
//!     │  frame 0: confirm                                     │   length, kind, body, MAC
//!     ├──────────────────────────────────────────────────────►│
//!     │  frame 0: confirm                                     │
//!     │◄──────────────────────────────────────────────────────┤
//! ```
//!
//! **Trust.** Only root can read the credentials (munge's restriction to a uid), so only root of a node of the cluster knows both
//! nonces. The keys of both directions come from the nonces and from all bytes of both credentials: whoever replays or reflects a
//! credential, or changes a byte of it, has no key, and his confirmation does not hold.
//!
//! **What it gives.** Frames cannot be forged, changed, dropped, repeated or swapped without an end of the session. They are not
//! encrypted, and whoever learns munge's key later can compute the keys of sessions that he recorded.
//!
//! **Limits.** Before the handshake is done a length over [`MAX_HANDSHAKE`] is refused. Memory grows with what has arrived, never
//! with what a length promises.

mod claim;
mod credentials;
mod fault;
mod frame;
mod gather;
mod handshake;
mod key_names;
mod keys;

pub use claim::{Peer, Place, Places};
pub use credentials::{Credentials, Opened, Refusal};
pub use fault::Fault;
pub use frame::{FRAME_OVERHEAD, Frame, HEADER, Kind, MAC, Opener, Sealed, Sealer};
pub use handshake::{Handshake, Session, Settings, Taken};
pub use key_names::{KeyNames, OtherKeys};

/// The longest message of the handshake, in bytes, without the 4 bytes of its length.
pub const MAX_HANDSHAKE: usize = 8 << 10;

/// The longest body of a frame, in bytes, where a caller names no other: the longest message of the movers with room to spare.
pub const MAX_BODY: usize = (2 << 20) + (64 << 10);

/// The version of this protocol. Nodes of another version are refused: the nodes of a job run one release.
pub const VERSION: u16 = 3;

/// Random bytes that a side draws for one handshake.
pub const NONCE: usize = 32;
