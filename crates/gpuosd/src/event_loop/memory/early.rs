//! Who asks before it is known which GPUs there are: right after gpuosd has started anew, in PBS until mom has told their order. They wait for it, as a
//! program that is refused runs without what it was promised.

use std::time::{Duration, Instant};

use gpuos_memory::lease::ClientId;
use gpuos_memory::protocol::Uuid;

use super::super::effect::Effects;
use super::{Facts, Memory, TICK};

/// So long: a mom tells what she has every 5 s, and `cuInit` waits 10 s for an answer.
const WAITS: Duration = Duration::from_secs(9);

/// What a program asks for of a GPU: bytes, and how many of them on it at least.
pub type Wish = (Uuid, u64, u64);

/// One that waits.
pub struct Early {
    client: ClientId,
    wish: Wish,
    since: Instant,
}

impl Memory {
    /// A program asks.
    pub(super) fn asks(&mut self, client: ClientId, wish: Wish, on: &Facts<'_>, fx: &mut Effects) {
        if !on.gpus.is_empty() {
            return self.ask(client, wish, on, fx);
        }
        let since = on.now.at;
        self.early.push(Early {
            client,
            wish,
            since,
        });
        self.due.get_or_insert(since + TICK);
    }

    /// Those who have waited are answered, when the GPUs are known or they have waited for too long.
    pub(super) fn answer_early(&mut self, on: &Facts<'_>, fx: &mut Effects) {
        let waits = |one: &Early| on.gpus.is_empty() && on.now.at < one.since + WAITS;
        let all = std::mem::take(&mut self.early);
        let (waiting, now): (Vec<Early>, Vec<Early>) = all.into_iter().partition(waits);
        self.early = waiting;
        for one in now {
            self.ask(one.client, one.wish, on, fx);
        }
    }

    /// Its connection has ended: it asks again by the next one.
    pub(super) fn asks_no_more(&mut self, client: ClientId) {
        self.early.retain(|one| one.client != client);
    }
}
