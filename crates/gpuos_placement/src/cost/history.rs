//! What earlier runs of the same user and job name teach: how long they take, and how much of the
//! time goes with the bandwidth between their GPUs.
use std::collections::BTreeMap;

use super::WHOLE;

/// The longest name kept; longer ones are cut.
const MAX_NAME: usize = 128;

/// After so many runs older ones count half: jobs change under the same name.
const MEMORY: i128 = 64;

/// The end of a job, as it counts here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct End<'a> {
    /// User name or id.
    pub user: &'a str,
    /// Job name.
    pub name: &'a str,
    /// GPUs of the job.
    pub gpus: u32,
    /// How long it ran, in seconds.
    pub seconds: u32,
    /// Bus bandwidth that its place had, in hundredths of GB/s; 0 = not known or none needed.
    pub bus: u32,
    /// Whether it ended by itself with success: others say nothing about how long a run takes.
    pub completed: bool,
}

/// What is known of one user's jobs of one name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Completed runs seen (older ones count less).
    pub runs: u32,
    /// GPUs of the last run.
    pub gpus: u32,
    /// Mean time of a run in seconds.
    pub seconds: u32,
    /// Part of the time that goes with the bandwidth between GPUs, in thousandths: how the time of
    /// runs of this size changed with the bandwidth of their places. `None` until runs with clearly
    /// different bandwidth were seen.
    pub communication: Option<u32>,
}

/// Sums over the runs of one user, name and size. With `x` = reference bandwidth over bandwidth and
/// `y` = time, a line `y = a + b x` is fitted by least squares.
#[derive(Clone, Debug, Default)]
struct Sums {
    gpus: u32,
    /// First bandwidth seen: the reference.
    reference: u32,
    /// Runs, runs with known bandwidth, and their sums; `x` in thousandths.
    runs: i128,
    n: i128,
    y_all: i128,
    x: i128,
    y: i128,
    xx: i128,
    xy: i128,
    /// When it was last touched.
    touched: u64,
}

/// Records of a bounded number of users and job names; the one that was not touched the longest
/// makes room. Pure: fed by job ends, the same ends in the same order give the same records.
#[derive(Clone, Debug, Default)]
pub struct History {
    users: BTreeMap<Box<str>, BTreeMap<Box<str>, Sums>>,
    most: usize,
    count: usize,
    clock: u64,
}

impl History {
    /// A history of at most `most` users and job names.
    pub fn new(most: usize) -> History {
        History {
            most: most.max(1),
            ..History::default()
        }
    }

    /// Number of records.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether nothing is known yet.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Takes note of the end of a job.
    pub fn note(&mut self, end: &End<'_>) {
        if !end.completed || end.seconds == 0 {
            return;
        }
        self.clock += 1;
        let (user, name) = (cut(end.user), cut(end.name));
        if self.sums(user, name).is_none() {
            if self.count == self.most {
                self.forget_oldest();
            }
            let names = self.users.entry(user.into()).or_default();
            names.insert(name.into(), Sums::default());
            self.count += 1;
        }
        let clock = self.clock;
        let names = self.users.get_mut(user);
        if let Some(sums) = names.and_then(|names| names.get_mut(name)) {
            sums.touched = clock;
            sums.note(end);
        }
    }

    /// What is known of a user's jobs of a name.
    pub fn get(&self, user: &str, name: &str) -> Option<Record> {
        let sums = self.sums(cut(user), cut(name))?;
        let mean = sums.y_all.checked_div(sums.runs)?;
        Some(Record {
            runs: u32::try_from(sums.runs).unwrap_or(u32::MAX),
            gpus: sums.gpus,
            seconds: u32::try_from(mean).unwrap_or(u32::MAX),
            communication: sums.communication(),
        })
    }

    fn sums(&self, user: &str, name: &str) -> Option<&Sums> {
        self.users.get(user)?.get(name)
    }

    fn forget_oldest(&mut self) {
        let all = self.users.iter().flat_map(|(user, names)| {
            let each = names.iter();
            each.map(move |(name, sums)| (sums.touched, user, name))
        });
        let Some((user, name)) = all
            .min()
            .map(|(_, user, name)| (user.clone(), name.clone()))
        else {
            return;
        };
        if let Some(names) = self.users.get_mut(&user) {
            names.remove(&name);
            self.count -= 1;
            if names.is_empty() {
                self.users.remove(&user);
            }
        }
    }
}

impl Sums {
    fn note(&mut self, end: &End<'_>) {
        // Runs of another size are other runs.
        if self.gpus != end.gpus {
            *self = Sums {
                gpus: end.gpus,
                touched: self.touched,
                ..Sums::default()
            };
        }
        if self.runs >= MEMORY {
            for sum in [
                &mut self.runs,
                &mut self.n,
                &mut self.y_all,
                &mut self.x,
                &mut self.y,
                &mut self.xx,
                &mut self.xy,
            ] {
                *sum /= 2;
            }
        }
        let y = i128::from(end.seconds);
        self.runs += 1;
        self.y_all += y;
        if end.bus == 0 || end.bus == crate::fabric::UNBOUNDED {
            return;
        }
        if self.reference == 0 {
            self.reference = end.bus;
        }
        let x = i128::from(self.reference) * i128::from(WHOLE) / i128::from(end.bus);
        let x = x.min(1_000_000);
        self.n += 1;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// The slope's part of the time at the mean bandwidth.
    fn communication(&self) -> Option<u32> {
        let spread = self.n * self.xx - self.x * self.x;
        // Bandwidths that differ by less than a tenth around their mean teach nothing.
        if self.n < 3 || spread * 100 < self.x * self.x || self.y == 0 {
            return None;
        }
        // b x / y with b = (n Sxy - Sx Sy) / (n Sxx - Sx Sx), at the mean of x and y.
        let part = (self.n * self.xy - self.x * self.y) * self.x * i128::from(WHOLE);
        let part = part / spread / self.y;
        Some(part.clamp(0, i128::from(WHOLE)) as u32)
    }
}

/// A name of bounded length.
fn cut(name: &str) -> &str {
    let mut end = name.len().min(MAX_NAME);
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    &name[..end]
}
