//! Free sets of GPUs of a node type, sorted into kinds that are worth the same to jobs.
//!
//! Up to eight GPUs the kinds are those that [`GpuTable::alike`] tells apart, by their links. A
//! larger node, or one with more than [`MOST`] kinds, goes by the number of free GPUs alone.
use gpuos_model::gpuset::GpuSet;

use super::gpus::{GpuTable, MILLI, for_each_subset, job_value};

/// With more kinds, values of them all would take too long to compute.
const MOST: usize = 96;

/// The kinds of one node type, in the order of their number of GPUs.
#[derive(Clone, Debug, Default)]
pub struct Kinds {
    gpus: usize,
    /// Kind of each free set; empty when the kind is the number of GPUs.
    of: Vec<u8>,
    /// By kind and number of GPUs.
    offers: Vec<Offer>,
    remaining: Vec<u8>,
}

/// What a kind has for a job of some number of GPUs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Offer {
    /// Where the kinds that can stay free begin in the list of them, and how many there are;
    /// none: the job does not fit.
    remaining: (u32, u32),
    /// Thousandths of a GPU that the job counts: less where its ring is slower than it could be
    /// on the idle node; 0 below one half, which is no use of GPUs that is hoped for.
    pub value: u32,
    /// How many such jobs find room at once.
    pub pack: u32,
}

impl Kinds {
    /// The kinds of a node type.
    pub fn new(table: &GpuTable) -> Kinds {
        let gpus = table.gpus;
        let mut kinds = Kinds {
            gpus,
            ..Kinds::default()
        };
        let sets = || (0..1u64 << gpus).map(GpuSet);
        if gpus <= 8 {
            let mut own: Vec<GpuSet> = sets().filter(|&set| table.alike(set) == set).collect();
            own.sort_by_key(|set| (set.len(), set.0));
            if own.len() <= MOST {
                let kind = |set| own.iter().position(|&o| o == table.alike(set)).unwrap_or(0) as u8;
                kinds.of = sets().map(kind).collect();
                kinds.offer_links(table, &own);
                return kinds;
            }
        }
        for free in 0..=gpus {
            for count in 0..=gpus {
                let fits = count > 0 && count <= free;
                let first = kinds.remaining.len() as u32;
                kinds.remaining.extend(fits.then(|| (free - count) as u8));
                kinds.offers.push(Offer {
                    remaining: (first, u32::from(fits)),
                    value: if fits { count as u32 * MILLI } else { 0 },
                    pack: free.checked_div(count).unwrap_or(0) as u32,
                });
            }
        }
        kinds
    }

    fn offer_links(&mut self, table: &GpuTable, own: &[GpuSet]) {
        let packed: Vec<Vec<u8>> = (0..=self.gpus).map(|count| packed(table, count)).collect();
        for &free in own {
            for (count, packed) in packed.iter().enumerate() {
                let first = self.remaining.len();
                let mut ring = 0;
                table.for_each_kind(free, count, false, |set| {
                    ring = table.ring(set);
                    let rest = self.of[free.minus(set).0 as usize];
                    if !self.remaining[first..].contains(&rest) {
                        self.remaining.push(rest);
                    }
                });
                let len = self.remaining.len() - first;
                let best = best_ring(table, count);
                let good = len > 0 && ring * 2 >= best;
                self.offers.push(Offer {
                    remaining: (first as u32, len as u32),
                    value: if good {
                        job_value(count, ring, best)
                    } else {
                        0
                    },
                    pack: u32::from(packed[free.0 as usize]),
                });
            }
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.offers.len() / (self.gpus + 1)
    }

    /// Kind of a free set.
    pub fn of(&self, free: GpuSet) -> usize {
        match self.of.get(free.0 as usize) {
            Some(&kind) => usize::from(kind),
            None => free.len().min(self.gpus),
        }
    }

    /// What a kind has for a job of so many GPUs.
    pub fn offer(&self, kind: usize, count: usize) -> Offer {
        match count <= self.gpus {
            true => self.offers[kind * (self.gpus + 1) + count],
            false => Offer::default(),
        }
    }

    /// The kinds that can stay free after a job has taken GPUs: see [`GpuTable::for_each_kind`].
    pub fn remaining_kinds(&self, offer: Offer) -> &[u8] {
        &self.remaining[offer.remaining.0 as usize..][..offer.remaining.1 as usize]
    }

    /// Whether sets of one number of GPUs differ at all.
    pub fn by_links(&self) -> bool {
        self.len() > self.gpus + 1
    }
}

fn best_ring(table: &GpuTable, count: usize) -> u32 {
    let mut best = 0;
    table.for_each_best(table.all, count, false, |set| best = table.ring(set));
    best
}

/// By free set: how many jobs of so many GPUs, each with a ring of at least half the best one,
/// find room at once.
fn packed(table: &GpuTable, count: usize) -> Vec<u8> {
    let mut packed = vec![0u8; 1 << table.gpus];
    let best = best_ring(table, count);
    for free in 1..packed.len() {
        let low = free & free.wrapping_neg();
        let rest = free ^ low;
        let mut most = packed[rest];
        let mut with = |others: usize| {
            let job = others | low;
            if table.ring(GpuSet(job as u64)) * 2 >= best {
                most = most.max(1 + packed[free ^ job]);
            }
        };
        match count {
            0 => {}
            1 => with(0),
            _ => for_each_subset(GpuSet(rest as u64), count - 1, |others| {
                with(others.0 as usize)
            }),
        }
        packed[free] = most;
    }
    packed
}
