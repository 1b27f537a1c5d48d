//! Who asks before it is known which GPUs there are: right after gpuosd has started anew, in PBS until mom has told their order. They wait for it, as a
//! program that is refused runs without what it was promised.

use std::time::{Duration, Instant};

use gpuos_memory::lease::ClientId;
use gpuos_memory::protocol::Uuid;

/// So long: a mom tells what she has every 5 s, and `cuInit` waits 10 s for an answer.
const WAITS: Duration = Duration::from_secs(9);

/// What a program asks for of a GPU: bytes, and how many of them on it at least.
pub type Wish = (Uuid, u64, u64);

/// Those who wait, and since when.
#[derive(Default)]
pub struct Early(Vec<(ClientId, Wish, Instant)>);

impl Early {
    /// A program waits.
    pub fn keep(&mut self, client: ClientId, wish: Wish, now: Instant) {
        self.0.push((client, wish, now));
    }

    /// Those who are answered now: all when the GPUs are `known`, else who has waited for too long.
    pub fn take(&mut self, known: bool, now: Instant) -> Vec<(ClientId, Wish)> {
        let is_over = |since: Instant| known || now >= since + WAITS;
        let over = self.0.extract_if(.., |(_, _, since)| is_over(*since));
        over.map(|(client, wish, _)| (client, wish)).collect()
    }

    /// Its connection has ended: it asks again by the next one.
    pub fn forget(&mut self, client: ClientId) {
        self.0.retain(|(one, ..)| *one != client);
    }
}
