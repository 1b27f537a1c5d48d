//! Streams of jobs: which profiles they ask for, when they come, how long they run.

use gpuos_model::rng::Rng;

use super::board::Board;

/// Mean time that a job runs, in seconds.
pub const MEAN: u64 = 4 * 3600;
/// Length of a run in mean lifetimes; what comes before [`WARM`] does not count.
pub const LENGTH: u64 = 16;
/// Mean lifetimes until the pool is as full as it will be.
pub const WARM: u64 = 4;

/// Which profiles come how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stream {
    /// Each as often as the others.
    Uniform,
    /// Small ones more often.
    Small,
    /// Small ones and whole GPUs, little between.
    Bimodal,
}

/// One job: it asks for one instance.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Job {
    /// When it comes, in seconds.
    pub at: u64,
    /// Number of the profile.
    pub profile: usize,
    /// Seconds that it runs.
    pub life: u64,
}

impl Stream {
    /// All of them.
    pub const ALL: [Stream; 3] = [Stream::Uniform, Stream::Small, Stream::Bimodal];

    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Uniform => "uniform",
            Stream::Small => "small",
            Stream::Bimodal => "bimodal",
        }
    }

    /// The stream with this name.
    pub fn by_name(name: &str) -> Option<Stream> {
        Stream::ALL.into_iter().find(|stream| stream.name() == name)
    }

    /// Weights in percent from the smallest profile to the largest, for six profiles (an H100
    /// without the media extension).
    const fn weights(self) -> [u64; 6] {
        match self {
            Stream::Uniform => [1; 6],
            Stream::Small => [30, 25, 20, 10, 10, 5],
            Stream::Bimodal => [30, 15, 5, 5, 15, 30],
        }
    }

    /// The profiles of a board that come, those without suffix, and their weights. Boards with
    /// fewer than six sum up the weights of neighbours.
    pub fn mix(self, board: &Board) -> Vec<(usize, u64)> {
        let profiles = board.geometry.profiles();
        let mut plain: Vec<usize> = (0..profiles.len()).collect();
        plain.retain(|&number| profiles[number].suffix().is_empty());
        plain.sort_by_key(|&number| (profiles[number].size, profiles[number].compute));
        let count = plain.len().max(1);
        let mut mix: Vec<(usize, u64)> = plain.into_iter().map(|number| (number, 0)).collect();
        for (at, weight) in self.weights().into_iter().enumerate() {
            if let Some(entry) = mix.get_mut(at * count / 6) {
                entry.1 += weight;
            }
        }
        mix
    }

    /// One profile at random.
    pub fn draw(mix: &[(usize, u64)], rng: &mut Rng) -> usize {
        let all = mix.iter().map(|entry| entry.1).sum();
        let mut left = rng.below(all);
        for &(profile, weight) in mix {
            if left < weight {
                return profile;
            }
            left -= weight;
        }
        0
    }

    /// The jobs of one run: as many as make the load, at random times, with exponential lifetimes.
    pub fn jobs(self, board: &Board, gpus: u64, load_percent: u64, seed: u64) -> Vec<Job> {
        let mut rng = Rng::new(seed);
        let mix = self.mix(board);
        let capacity = u64::from(board.geometry.slices()) * gpus;
        let period = LENGTH * MEAN;
        let wanted = capacity * period * load_percent / 100;
        let (mut work, mut jobs) = (0, Vec::new());
        while work < wanted {
            let profile = Stream::draw(&mix, &mut rng);
            let life = exponential(&mut rng, MEAN);
            work += life * u64::from(board.geometry.profiles()[profile].size);
            let at = rng.below(period);
            jobs.push(Job { at, profile, life });
        }
        jobs.sort_unstable();
        jobs
    }
}

/// An exponential variate by comparisons alone (von Neumann, "Various techniques used in connection
/// with random digits", 1951): no logarithm, so the same on every machine. At least 1.
fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    let mut whole = 0;
    loop {
        let first = rng.bits() >> 32;
        let (mut last, mut run) = (first, 1);
        loop {
            let next = rng.bits() >> 32;
            if next >= last {
                break;
            }
            (last, run) = (next, run + 1);
        }
        if run % 2 == 1 {
            return (((whole << 32 | first) * mean) >> 32).max(1);
        }
        whole += 1;
    }
}
