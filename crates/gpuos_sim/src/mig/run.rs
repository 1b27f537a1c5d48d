//! One run: jobs come, run and end; what fits nowhere when it comes is rejected, nothing waits.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use gpuos_model::mig::State;
use gpuos_model::rng::Rng;

use super::board::Board;
use super::policy::{Packing, Pool};
use super::stream::{Job, LENGTH, MEAN, Stream, WARM};

/// What came out of a run. Parts are in millionths, so that they compare exactly.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Accepted work: slices that run, mean over the time, of all slices.
    pub accepted_ppm: u64,
    /// Work of rejected jobs, of the work that came.
    pub rejected_ppm: u64,
    /// Rejected jobs, of the jobs that came.
    pub rejected_jobs_ppm: u64,
    /// GPUs on which nothing runs, mean over the time, of all GPUs.
    pub whole_ppm: u64,
    /// Idle slices that a job of the mix cannot use, mean over the time, of the idle slices.
    pub fragmented_ppm: u64,
    /// The most work that could be accepted by anybody: at each moment all that came and would
    /// still run, or all slices.
    pub most_ppm: u64,
    /// Work of a pool that takes every job while enough slices are free, wherever they are.
    pub pooled_ppm: u64,
    /// Slices taken when the first job is rejected and none has ended, of all slices.
    pub filled_ppm: u64,
}

/// Sums over the time that is measured.
struct Clock {
    now: u64,
    from: u64,
    until: u64,
}

impl Clock {
    fn new() -> Clock {
        Clock {
            now: 0,
            from: WARM * MEAN,
            until: LENGTH * MEAN,
        }
    }

    /// Time goes on; gives how much of it counts.
    fn pass(&mut self, to: u64) -> u128 {
        let (from, to) = (self.now.max(self.from), to.min(self.until));
        self.now = self.now.max(to);
        u128::from(to.saturating_sub(from))
    }

    fn length(&self) -> u128 {
        u128::from(self.until - self.from)
    }
}

/// A part in millionths.
fn ppm(part: u128, whole: u128) -> u64 {
    (part * 1_000_000 / whole.max(1)) as u64
}

/// What is seen of a pool as time goes on.
struct Watch<'a> {
    board: &'a Board,
    capacity: u128,
    /// By state: slices that a job of the mix could use, in millionths.
    usable: Vec<u128>,
    clock: Clock,
    /// Now: slices taken, GPUs on which nothing is, slices that a job could use.
    taken: u128,
    whole: u128,
    useful: u128,
    /// The same times seconds, and idle slices.
    sums: [u128; 4],
}

impl Watch<'_> {
    fn pass(&mut self, to: u64) {
        let time = self.clock.pass(to);
        let now = [
            self.taken,
            self.whole,
            self.useful,
            self.capacity - self.taken,
        ];
        for (sum, now) in self.sums.iter_mut().zip(now) {
            *sum += now * time;
        }
    }

    /// A GPU went from one state to another.
    fn moved(&mut self, before: State, now: State) {
        let mask = |state| u128::from(self.board.states.mask(state).count_ones());
        self.taken = self.taken + mask(now) - mask(before);
        self.whole = self.whole + u128::from(now == 0) - u128::from(before == 0);
        let usable = |state: State| self.usable[usize::from(state)];
        self.useful = self.useful + usable(now) - usable(before);
    }
}

/// Runs a policy over a stream of jobs.
///
/// # Errors
/// A board that cannot be packed.
pub fn run(
    board: &Board,
    packing: Packing,
    stream: Stream,
    gpus: u32,
    load_percent: u64,
    seed: u64,
) -> Result<Figures, String> {
    let jobs = stream.jobs(board, u64::from(gpus), load_percent, seed);
    let capacity = u128::from(board.geometry.slices()) * u128::from(gpus);
    let usable = usable(board, &stream.mix(board));
    let mut pool = Pool::new(board, packing, gpus)?;
    let mut watch = Watch {
        board,
        capacity,
        clock: Clock::new(),
        taken: 0,
        whole: u128::from(gpus),
        useful: usable[0] * u128::from(gpus),
        usable,
        sums: [0; 4],
    };
    let mut ends: BinaryHeap<Reverse<(u64, usize, usize)>> = BinaryHeap::new();
    // Of what came while it counts: all, and what was rejected.
    let (mut work, mut count) = ([0u128; 2], [0u128; 2]);
    for job in &jobs {
        while let Some(&Reverse((end, gpu, spot))) = ends.peek().filter(|end| end.0.0 <= job.at) {
            ends.pop();
            watch.pass(end);
            let before = pool.states()[gpu];
            pool.end(gpu, spot);
            watch.moved(before, pool.states()[gpu]);
        }
        watch.pass(job.at);
        let counts = u128::from(job.at >= WARM * MEAN);
        let size = u128::from(board.geometry.profiles()[job.profile].size);
        let mine = size * u128::from(job.life) * counts;
        (work[0], count[0]) = (work[0] + mine, count[0] + counts);
        if let Some((gpu, spot)) = pool.arrive(job.profile) {
            let now = pool.states()[gpu];
            watch.moved(board.states.destroy(now, spot), now);
            ends.push(Reverse((job.at + job.life, gpu, spot)));
        } else {
            (work[1], count[1]) = (work[1] + mine, count[1] + counts);
        }
    }
    // Jobs come until the very end of the time: nothing of note ends after the last of them.
    watch.pass(LENGTH * MEAN);
    let length = watch.clock.length();
    let [taken, whole, useful, idle] = watch.sums;
    Ok(Figures {
        accepted_ppm: ppm(taken, capacity * length),
        rejected_ppm: ppm(work[1], work[0]),
        rejected_jobs_ppm: ppm(count[1], count[0]),
        whole_ppm: ppm(whole, u128::from(gpus) * length),
        fragmented_ppm: 1_000_000 - ppm(useful, idle * 1_000_000).min(1_000_000),
        most_ppm: slices_only(board, &jobs, capacity, false),
        pooled_ppm: slices_only(board, &jobs, capacity, true),
        filled_ppm: fill(board, packing, stream, gpus, seed)?,
    })
}

/// By state: the slices that a job of the mix could use, its weight in millionths.
fn usable(board: &Board, mix: &[(usize, u64)]) -> Vec<u128> {
    let all: u64 = mix.iter().map(|entry| entry.1).sum();
    let profiles = board.geometry.profiles();
    let fit = |state: State, profile: usize| -> u64 {
        // Aligned placements: as many as are free one after the other.
        let mut state = state;
        let mut count = 0;
        for spot in board.states.spots_of(profile) {
            let next = board.states.make(state, spot);
            if next != gpuos_model::mig::NONE {
                (state, count) = (next, count + 1);
            }
        }
        count
    };
    let states = (0..board.states.count()).map(|state| {
        let each = mix.iter().map(|&(profile, weight)| {
            let slices = fit(state as State, profile) * u64::from(profiles[profile].size);
            u128::from(slices * weight * 1_000_000 / all.max(1))
        });
        each.sum()
    });
    states.collect()
}

/// The work of a pool of slices that need no placements: what comes and finds as many free, or with
/// `rejects` off all that comes, counted up to the slices that there are.
fn slices_only(board: &Board, jobs: &[Job], capacity: u128, rejects: bool) -> u64 {
    let mut clock = Clock::new();
    let mut ends: BinaryHeap<Reverse<(u64, u128)>> = BinaryHeap::new();
    let (mut taken, mut work) = (0u128, 0u128);
    for job in jobs {
        while let Some(&Reverse((end, size))) = ends.peek().filter(|end| end.0.0 <= job.at) {
            ends.pop();
            work += taken.min(capacity) * clock.pass(end);
            taken -= size;
        }
        work += taken.min(capacity) * clock.pass(job.at);
        let size = u128::from(board.geometry.profiles()[job.profile].size);
        if !rejects || taken + size <= capacity {
            taken += size;
            ends.push(Reverse((job.at + job.life, size)));
        }
    }
    work += taken.min(capacity) * clock.pass(LENGTH * MEAN);
    ppm(work, capacity * clock.length())
}

/// Jobs come and none ends, until the first is rejected.
fn fill(
    board: &Board,
    packing: Packing,
    stream: Stream,
    gpus: u32,
    seed: u64,
) -> Result<u64, String> {
    let mut rng = Rng::new(seed ^ 0xF111);
    let mix = stream.mix(board);
    let mut pool = Pool::new(board, packing, gpus)?;
    let mut taken = 0;
    loop {
        let profile = Stream::draw(&mix, &mut rng);
        if pool.arrive(profile).is_none() {
            break;
        }
        taken += u128::from(board.geometry.profiles()[profile].size);
    }
    Ok(ppm(
        taken,
        u128::from(board.geometry.slices()) * u128::from(gpus),
    ))
}
