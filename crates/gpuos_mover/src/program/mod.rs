//! A job's program, conducted: when it starts, from what; when it saves; and when a checkpoint of all its ranks is begun.
//!
//! ```text
//!  ranks ─► Joins ─► member ══ Report ══► leader: epochs, interval, numbers
//!           Answer, Ask, Close ◄─ member ◄══ Orders ══ leader ─► Begin ─► Node ─► Ended ─► leader
//! ```
//!
//! **Words.** Each node tells the leader (node 0) all that it knows, and the leader tells each node all that it is to do: whole states
//! with a version that counts up. What is old is not listened to, and what has no answer is said again with back-off, so that words
//! may be lost, repeated, late and reordered.
//!
//! **Epochs.** An epoch is one start of the program. All its ranks get the same answer, the newest committed checkpoint, which is
//! settled when nothing is being stored. A checkpoint is asked for when all ranks of the epoch have joined and every node has heard
//! all that it is to do, and comes of the joins that were there then: another join before the files are complete gives it up.
//! A rank that joins again begins a new epoch, for which all have to join. That holds once an epoch is *closed*: all ranks
//! have joined, [`Settings::settle_ms`] have gone by since the last, and every node has been heard meanwhile; or a checkpoint of it was
//! begun. Before that a rank that joins again takes its own place: it cannot be known then which of the others belong to
//! an earlier start, as joins become known in another order than they were made, and a start may have died before all had joined. No
//! harm comes of it, for nothing was committed since the epoch began. So it is with a rank that joins again before it was answered.
//!
//! **Ranks go on together.** None is told to go on from a checkpoint before all have joined: one whose step got no folder begins from
//! the start, and does not join. Joins of processes that are known to have ended do not count for that ([`Input::Gone`]), and that is
//! known: after the last join every node has looked once more. If some do not come within [`Settings::ready_ms`], the others are told to
//! end. From the start each begins at once.
//!
//! **Conductors that begin anew** while programs run, as when a mover was restarted, have from the folders which joins were answered
//! in which epoch ([`Known`]). The last of these epochs goes on. While the newest checkpoint is the one from which it began, ranks without an
//! answer belong to it; else they begin another one. Joins that were answered in an earlier epoch count no more. What was
//! being made is not gone on with: what became of it the leader says when it knows what all nodes have and were told ([`Known::open`]).
//!
//! **A checkpoint that a rank could not load** is refused: all nodes mark it, and everything begins anew with the one before. Ranks that
//! were given it have to join again. Until all of the program have, none is answered, so that no start of it has ranks of both; if some
//! do not within [`Settings::anew_ms`], the others are told to end. A refusal counts as long as nothing was saved of what was loaded.
//!
//! Pure: no I/O, clock or threads. Times are milliseconds of a clock that does not jump back.

mod conductor;
mod epoch;
mod leader;
mod line;
mod member;
mod pace;
mod resume;
mod start;
mod types;
mod word;

pub use conductor::Conductor;
pub use start::{Join, Reason, Start};
pub use types::{
    Answered, Every, Input, Known, Making, Output, Refused, Settings, Stage, Told, Took, View,
};
pub use word::{MAX_WORD, Word};
