//! A shard is made of others, piece by piece.
//!
//! When a set is encoded, the holder of a parity shard pulls the `k` chunks of its stripe from their members. When a member is
//! lost, whoever takes its place pulls any `k` shards of each stripe, and makes the missing one of them. Both are a [`Pull`],
//! a step function: [`Pull::step`] takes an event and says what to do. It sees numbers only; bytes, network, code and disc are
//! the caller's.
//!
//! ```text
//! Ask k sources for a piece -> Keep each answer -> Combine the k answers -> Write the result, in the order of pieces -> Done
//! ```
//!
//! **Memory.** At most `window` pieces are between their first `Ask` and their `Written`, and of each at most `k` answers are
//! kept, which `Combine` turns into one. So a pull never holds more than `window * k * piece_len` bytes, and one piece more
//! while it combines. Nothing is asked for beyond that: a slow disc slows down the sources, too.
//!
//! **Cost.** With a segment of `B` bytes for each member, rounded up to whole chunks, encoding makes each member send `m * B`
//! bytes and receive as many, in two messages for each piece. To make one of `n` members again, the others send `n * B` together.
//!
//! **Network.** Questions and answers may be lost, repeated, late and out of order: an answer counts only while its piece
//! waits for that source, and a question is repeated, less and less often. A source that refuses, that gives bytes which fail
//! their check, or that stays silent, is replaced by another one of the stripe. Each piece is decoded by itself, from the
//! sources that its [`Effect::Combine`] names, so what was combined before stays valid.
//!
//! **Crash.** Pieces are written in order, each once. Who starts again passes the number of pieces that are known to be on disc
//! as [`Plan::resume_from`]. A piece that was on its way to the disc then is made again, perhaps of other sources; its bytes
//! are the same, for any `k` shards of a stripe say the same.

mod gather;
mod plan;
mod step;

pub use gather::Loss;
pub use plan::{MOST_WINDOW, Patience, Plan, PlanError};
pub use step::{Effect, Event, Pull, TooFew};
