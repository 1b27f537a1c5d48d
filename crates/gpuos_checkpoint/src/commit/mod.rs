//! A checkpoint exists on all nodes of a job or not at all: two-phase commit as a step function, `step(state, input) -> effects`.
//!
//! The leader (node 0) has all nodes make their parts durable ([`Body::Prepare`], [`Body::Prepared`]). When all have, it makes
//! its own record of the commit durable, which is the decision, and then tells the others ([`Body::Commit`],
//! [`Body::Committed`]). What it has no such record of was not committed and may be dropped: presumed abort, after C. Mohan,
//! B. Lindsay, R. Obermarck, "Transaction management in the R* distributed database management system", ACM TODS 11 (1986).
//! The record of the leader decides only what nodes drop. What a restart uses is decided by what is there, see
//! [`usable`](crate::usable).
//!
//! ```text
//!              Prepare            Prepared                Commit             Committed
//!  leader    ──────────► member ──────────► leader: all? ────────► member ──────────► leader
//!                        MakePart           MakeCommitDurable      MakeCommitDurable
//!                        StoreReady         CommitDurable: decided CommitDurable
//! ```
//!
//! **No part that may count is dropped.** A node that has said `Prepared` keeps its part until the leader says `Abort`. It asks
//! ([`Body::Status`]) when it hears nothing, and it asks about a part that is older than its present start only when it knows
//! a newer checkpoint to be committed: the leader of an earlier run may have told its program of that part, and have been lost
//! with its record. The leader says `Abort` only of an attempt of its run of which it has no record, or of one that is older
//! than a committed one.
//!
//! **No part is made twice.** Parity shards of other nodes are made of the bytes of the first one. A node that has begun a part
//! and did not complete it refuses the attempt, after crashes too ([`Input::Restarted`]): nothing that shows that it was begun goes
//! before the leader has said `Abort`.
//!
//! **Messages** may be lost, repeated, reordered and late. Those of another run of the job are not listened to, those of another
//! attempt concern that attempt only. On a quiet network a checkpoint takes 4 messages for each node but the leader: 4(N - 1) at
//! the leader, which is 4,996 for 1,250 nodes. None has more than 100 bytes, as long as nothing fails: a `Commit` names the one
//! manifest that its node has to have. A tree of fan-out f, in which inner nodes collect `Prepared` and pass `Commit` on,
//! would bring the leader to 4 f messages, for log_f N hops instead of one and for the failure of an inner node being one of its
//! whole branch.

mod leader;
mod member;
mod message;
mod outbox;
mod settings;
mod step;

pub use message::{Body, Digests, Effect, Message, Outcome};
pub use settings::Settings;
pub use step::{Commit, Held, Input, step};
