//! Who may move bytes over a link of the node, and when: a token bucket, a cap in flight and a floor for demand for each link, as
//! [`crate::link`] has them.

use std::collections::BTreeMap;

use super::config::Config;
use super::ids::{ClientId, LinkId, MoveId};
use super::input::Effect;
use crate::link::{Bounds, Link, Wish};

/// Moves of one process on all links, at most.
const OF_ONE: usize = 1024;

/// The links.
#[derive(Default)]
pub(super) struct Links {
    links: BTreeMap<LinkId, Link<MoveId>>,
    /// Whose moves there are, and on which link.
    moves: BTreeMap<MoveId, (ClientId, LinkId)>,
}

/// Links count in ns.
fn ns(ms: u64) -> u64 {
    ms.saturating_mul(1_000_000)
}

fn bounds(config: &Config, link: LinkId) -> Bounds {
    match link {
        LinkId::Gpu(_) => config.gpu_link,
        LinkId::Nvme => config.nvme_link,
    }
}

impl Links {
    /// Somebody asks for a move.
    pub fn wish(
        &mut self,
        config: &Config,
        now: u64,
        client: ClientId,
        link: LinkId,
        wish: Wish<MoveId>,
        out: &mut Vec<Effect>,
    ) {
        let known = self.moves.contains_key(&wish.what);
        let own = self.moves.values().filter(|it| it.0 == client).count();
        let many = own >= OF_ONE;
        let new = || Link::new(bounds(config, link));
        let it = self.links.entry(link).or_insert_with(new);
        if known || many || it.wish(ns(now), wish).is_err() {
            // A move that is known goes on as it was.
            if !known {
                out.push(Effect::NoMove(wish.what));
            }
            return;
        }
        self.moves.insert(wish.what, (client, link));
    }

    /// A move has ended, or will not begin.
    pub fn ended(&mut self, now: u64, id: MoveId) {
        if let Some((_, link)) = self.moves.remove(&id)
            && let Some(link) = self.links.get_mut(&link)
            && !link.give_up(id)
        {
            link.ended(ns(now), id);
        }
    }

    /// A process is gone, and what was moved for it.
    pub fn gone(&mut self, now: u64, client: ClientId) {
        let moves = self.moves.iter().filter(|(_, it)| it.0 == client);
        let moves: Vec<MoveId> = moves.map(|(id, _)| *id).collect();
        for id in moves {
            self.ended(now, id);
        }
    }

    /// Moves that begin now.
    pub fn begin(&mut self, now: u64, out: &mut Vec<Effect>) {
        for link in self.links.values_mut() {
            while let Some(wish) = link.begin(ns(now)) {
                out.push(Effect::Move(wish.what));
            }
        }
    }

    /// Nothing waits or is moved.
    pub fn idle(&self) -> bool {
        self.moves.is_empty()
    }
}
