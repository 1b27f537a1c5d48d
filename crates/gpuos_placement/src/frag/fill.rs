//! The expected fill of a node, and the gradient score that follows from it.
use gpuos_model::rng::Rng;

use super::choose::Score;
use super::cluster::Cluster;
use super::learn::WEIGHTS;
use super::mix::{Class, Mix};
use super::request::{MAX_DEVICES, MILLI, Request, Slot, State, take_share, take_whole};
use super::scarcity::{self, Demand, MAX_KINDS, PRICE_PERCENT, PRICE_UNIT, Prices, Supply};

/// Sequences of arrivals that a value is the mean of. More of them changed allocation on the
/// openb workloads by less than its spread over seeds.
const SEQUENCES: usize = 32;
/// Arrivals in each. 32 were worse by 0.1 points, 128 no better.
const ARRIVALS: usize = 64;
/// Scores are compared in steps of this many thousandths of a GPU, so that a difference below
/// the noise of the sequences leaves the decision to the order of the nodes, which fills them one
/// after the other and keeps others whole for large jobs.
const STEP: i64 = 100;
/// What room for jobs of several GPUs counts besides the fill, in percent. The fill alone does not
/// see it: many small jobs use up a node as well as a large one, which then finds no room.
const ROOM_PERCENT: u64 = 50;
/// Arrivals after which prices are looked at anew; before so many, after each.
const PRICES_EVERY: u64 = 16;
/// Slots of the cache, a power of two.
const CACHE: usize = 1 << 15;
/// The seed of the sequences. Any will do; it has to be the same everywhere.
const SEED: u64 = 7;

/// How many thousandths of a GPU a node state will still take in, if jobs of the typical mix go
/// on arriving.
///
/// Fixed sequences of arrivals are drawn from the mix. The node is filled with each in turn: what
/// fits starts, on the fullest GPU that has room, what does not fit is passed over. The value is
/// the sum over the sequences. All states meet the same sequences, so that differences between
/// states have little noise. Room for jobs of several GPUs counts besides, at a lower rate.
///
/// The mix is learned as jobs arrive, jobs with GPUs only, each counted by its number of GPUs.
/// The sequences are drawn anew whenever the number of arrivals has doubled.
#[derive(Clone, Debug)]
pub struct FillValue {
    mix: Mix,
    learns: bool,
    arrived: u64,
    next_draw: u64,
    revision: u64,
    jobs: Vec<Request>,
    /// The classes of jobs of several GPUs.
    large: Vec<Class>,
    /// The least that any job asks for: below it nothing more will start.
    least_cpu: u32,
    least_share: u16,
    cache: Vec<(Key, u32)>,
    prices: Prices,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Key {
    /// Free thousandths, of eight GPUs.
    free: [u128; 2],
    cpu: u32,
    /// GiB: finer differences in memory are not worth a computation.
    memory: u32,
    model: u8,
}

impl Key {
    /// A key that no state has: states have models below 64.
    const NONE: Key = Key {
        free: [0; 2],
        cpu: 0,
        memory: 0,
        model: u8::MAX,
    };

    fn new(state: &State) -> Key {
        let pack = |gpus: &[u16]| gpus.iter().fold(0, |acc, &f| acc << 16 | u128::from(f));
        let (low, high) = state.free.split_at(MAX_DEVICES / 2);
        Key {
            free: [pack(low), pack(high)],
            cpu: state.cpu,
            memory: state.memory >> 10,
            model: state.model & 63,
        }
    }

    fn slot(&self) -> usize {
        let words = [
            self.free[0] as u64,
            (self.free[0] >> 64) as u64,
            self.free[1] as u64,
            (self.free[1] >> 64) as u64,
            u64::from(self.cpu) << 32 | u64::from(self.memory) << 6 | u64::from(self.model),
        ];
        let hash = words.iter().fold(0u64, |hash, &word| {
            let mixed = (hash.rotate_left(5) ^ word).wrapping_mul(0x517C_C1B7_2722_0A95);
            mixed ^ mixed >> 32
        });
        hash as usize & (CACHE - 1)
    }
}

impl Default for FillValue {
    fn default() -> FillValue {
        FillValue::learning()
    }
}

impl FillValue {
    /// A value that knows nothing yet and learns from arrivals.
    pub fn learning() -> FillValue {
        FillValue {
            mix: Mix::new(),
            learns: true,
            arrived: 0,
            next_draw: 1,
            revision: 0,
            jobs: Vec::new(),
            large: Vec::new(),
            least_cpu: 0,
            least_share: 0,
            cache: vec![(Key::NONE, 0); CACHE],
            prices: [0; MAX_KINDS],
        }
    }

    /// A value under a given mix, which stays as it is. Classes without GPUs are left out, and
    /// weights are used as they are.
    pub fn with_fixed_mix(mix: &Mix) -> FillValue {
        let mut value = FillValue::learning();
        for class in mix.classes().iter().filter(|c| c.request.gpus > 0) {
            value.mix.add(&class.request, class.weight);
        }
        value.learns = false;
        value.draw();
        value
    }

    /// Draws the sequences from the mix, and forgets what was computed from the old ones.
    fn draw(&mut self) {
        self.revision += 1;
        self.cache.fill((Key::NONE, 0));
        self.jobs.clear();
        let classes = self.mix.classes();
        self.large.clear();
        let several = classes.iter().filter(|class| class.request.gpus > 1);
        self.large.extend(several);
        let mut rng = Rng::new(SEED);
        if self.mix.total() == 0 {
            return;
        }
        for _ in 0..SEQUENCES * ARRIVALS {
            let mut at = rng.below(self.mix.total());
            let drawn = classes.iter().find(|class| {
                let found = at < class.weight;
                at = at.saturating_sub(class.weight);
                found
            });
            self.jobs.extend(drawn.map(|class| class.request));
        }
        self.least_cpu = self.jobs.iter().map(|job| job.cpu).min().unwrap_or(0);
        self.least_share = self.jobs.iter().map(|job| job.share).min().unwrap_or(0);
    }

    /// The value of a state, in thousandths of a GPU summed over the sequences: the fill, and a
    /// part of the room for large jobs.
    fn of(&mut self, state: &State) -> u32 {
        let key = Key::new(state);
        let slot = key.slot();
        if self.cache[slot].0 != key {
            self.cache[slot] = (key, self.fill(state) + self.capacity(state));
        }
        self.cache[slot].1
    }

    /// The expected fill of a state in thousandths of a GPU: the mean over the sequences, rounded
    /// down.
    pub fn expected(&self, state: &State) -> u32 {
        self.fill(state) / SEQUENCES as u32
    }

    /// What the jobs of several GPUs could take, each class alone: the mean over the mix, where
    /// other jobs count as 0. In the unit of [`FillValue::of`].
    fn capacity(&self, state: &State) -> u32 {
        let whole = state.whole() as u64;
        let took = |class: &Class| {
            let job = &class.request;
            if !state.accepts(job) {
                return 0;
            }
            let by_cores = u64::from(state.cpu.checked_div(job.cpu).unwrap_or(u32::MAX));
            let count = (whole / u64::from(job.gpus)).min(by_cores);
            class.weight * count * u64::from(job.milli())
        };
        let sum: u64 = self.large.iter().map(took).sum();
        let part = sum * SEQUENCES as u64 * ROOM_PERCENT / 100;
        (part / self.mix.total().max(1)) as u32
    }

    /// Prices from what is idle now. All classes count by the GPUs of nodes on which they fit.
    fn update_prices(&mut self, cluster: &Cluster) {
        let kinds = cluster.kinds();
        if kinds.len() < 2 {
            return;
        }
        let classes = self.mix.classes();
        let total = u128::from(self.mix.total().max(1));
        let demand = |class: &Class| {
            let takes = kinds.iter().take(MAX_KINDS).enumerate();
            let takes = takes.filter(|(_, kind)| kind.fits(&class.request));
            Demand {
                weight: (u128::from(class.weight) * u128::from(WEIGHTS) / total) as u64,
                kinds: takes.fold(0, |all, (kind, _)| all | 1 << kind),
                supply: Supply::default(),
            }
        };
        let mut demands: Vec<Demand> = classes.iter().map(demand).collect();
        let mut whole = Supply::default();
        for state in cluster.states() {
            let kind = usize::from(state.kind);
            let idle = u64::from(state.idle());
            let all = kinds.get(kind).map_or(0, |kind| u64::from(kind.idle()));
            whole.idle += idle;
            whole.all += all;
            for (class, demand) in classes.iter().zip(&mut demands) {
                if kind < MAX_KINDS && demand.kinds >> kind & 1 == 1 {
                    demand.supply.all += all;
                    if state.fits(&class.request) {
                        demand.supply.idle += idle;
                    }
                }
            }
        }
        self.prices = scarcity::prices(kinds.len(), whole, demands.into_iter());
    }

    fn fill(&self, state: &State) -> u32 {
        let mut sum = 0;
        for sequence in self.jobs.chunks(ARRIVALS) {
            let mut now = *state;
            // As coarse as the key, so that the value does not hang on who asked first.
            now.memory &= !1023;
            for job in sequence {
                if now.cpu < self.least_cpu || now.free[MAX_DEVICES - 1] < self.least_share {
                    break;
                }
                if !now.fits(job) {
                    continue;
                }
                now.cpu -= job.cpu;
                now.memory -= job.memory;
                if job.share < MILLI {
                    let tightest = now.free.iter().position(|&free| free >= job.share);
                    take_share(&mut now.free, tightest.unwrap_or(0), job.share);
                } else {
                    take_whole(&mut now.free, usize::from(job.gpus));
                }
                sum += job.milli();
            }
        }
        sum
    }
}

/// A score in the steps by which scores are compared.
fn steps(score: i64) -> i64 {
    score.div_euclid(STEP * SEQUENCES as i64)
}

/// The score is what the node's value loses beyond the GPUs that the request takes, negated. Nodes
/// are compared by it less the price of these GPUs, in steps of 100 thousandths of a GPU. Of equal
/// scores in one node the fullest GPU is chosen, of equal nodes the first.
impl Score for FillValue {
    fn observe(&mut self, cluster: &Cluster, request: &Request) {
        if request.gpus == 0 {
            return;
        }
        self.arrived += 1;
        if self.learns {
            self.mix.add(request, u64::from(request.gpus));
            if self.arrived >= self.next_draw {
                self.next_draw = self.arrived * 2;
                self.draw();
            }
        }
        if self.arrived < PRICES_EVERY || self.arrived.is_multiple_of(PRICES_EVERY) {
            self.update_prices(cluster);
        }
    }

    fn revision(&self) -> u64 {
        self.revision
    }

    fn rank(&self, score: i64, state: &State, request: &Request) -> i64 {
        let price = self
            .prices
            .get(usize::from(state.kind))
            .copied()
            .unwrap_or(0);
        let price =
            u64::from(request.milli()) * u64::from(price) * PRICE_PERCENT * SEQUENCES as u64
                / (100 * PRICE_UNIT);
        steps(score - price as i64)
    }

    fn score(&mut self, state: &State, request: &Request) -> Option<(i64, Slot)> {
        let before = i64::from(self.of(state));
        let taken = i64::from(request.milli()) * SEQUENCES as i64;
        let mut best: Option<(i64, Slot)> = None;
        for slot in state.slots(request) {
            let after = i64::from(self.of(&state.after(request, slot)));
            let score = after + taken - before;
            if best.is_none_or(|(known, _)| steps(score) > steps(known)) {
                best = Some((score, slot));
            }
        }
        best
    }
}
